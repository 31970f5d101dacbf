package fault

// This file is the driver's side of the protocol.

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
)

// Path is where faults are, versioned.
const Path = "/v1/faults"

// maxBody is the most bytes of a request: a Spec is small.
const maxBody = 64 << 10

// list is the body of an answer that holds faults.
type list struct {
	Faults []Fault `json:"faults"`
}

// failure is the body of an answer that is an error.
type failure struct {
	Error string `json:"error"`
}

// Handler serves the protocol over a backend.
func Handler(backend Interface) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+Path, func(w http.ResponseWriter, r *http.Request) {
		if err := parameters(r); err != nil {
			refuse(w, http.StatusBadRequest, err)
			return
		}
		faults, err := backend.List(r.Context())
		answer(w, http.StatusOK, list{faults}, err)
	})
	mux.HandleFunc("POST "+Path, func(w http.ResponseWriter, r *http.Request) {
		spec, err := readSpec(w, r)
		if err != nil {
			refuse(w, http.StatusBadRequest, err)
			return
		}
		fault, err := backend.Inject(r.Context(), spec)
		answer(w, http.StatusCreated, fault, err)
	})
	mux.HandleFunc("DELETE "+Path, func(w http.ResponseWriter, r *http.Request) {
		which, err := readSelector(r)
		if err != nil {
			refuse(w, http.StatusBadRequest, err)
			return
		}
		faults, err := backend.Clear(r.Context(), which)
		answer(w, http.StatusOK, list{faults}, err)
	})
	mux.HandleFunc(Path, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Allow", "GET, POST, DELETE")
		refuse(w, http.StatusMethodNotAllowed, fmt.Errorf("%s does not take %s", Path, r.Method))
	})
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		refuse(w, http.StatusNotFound, fmt.Errorf("there is nothing at %s; faults are at %s", r.URL.Path, Path))
	})
	return mux
}

func answer(w http.ResponseWriter, code int, body any, err error) {
	switch {
	case errors.Is(err, ErrNotFound):
		refuse(w, http.StatusNotFound, err)
	case errors.Is(err, ErrUnsupported):
		refuse(w, http.StatusUnprocessableEntity, err)
	case err != nil:
		refuse(w, http.StatusInternalServerError, err)
	default:
		if l, ok := body.(list); ok && l.Faults == nil {
			body = list{[]Fault{}}
		}
		write(w, code, body)
	}
}

func refuse(w http.ResponseWriter, code int, err error) {
	write(w, code, failure{err.Error()})
}

func write(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	_ = e.Encode(body) // whoever asked is gone
}

// parameters refuses query parameters other than those named, and any twice.
func parameters(r *http.Request, allowed ...string) error {
	for name, values := range r.URL.Query() {
		switch {
		case !slices.Contains(allowed, name):
			return fmt.Errorf("%s: %s %s takes no such parameter", name, r.Method, Path)
		case len(values) != 1 || values[0] == "":
			return fmt.Errorf("%s: must be given once, with a value", name)
		}
	}
	return nil
}

func readSelector(r *http.Request) (Selector, error) {
	if err := parameters(r, "id", "device"); err != nil {
		return Selector{}, err
	}
	which := Selector{ID: r.URL.Query().Get("id"), Device: r.URL.Query().Get("device")}
	if which.ID != "" && which.Device != "" {
		return Selector{}, errors.New("id: goes with no device")
	}
	return which, nil
}

func readSpec(w http.ResponseWriter, r *http.Request) (Spec, error) {
	if err := parameters(r); err != nil {
		return Spec{}, err
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	if err != nil {
		return Spec{}, fmt.Errorf("reading the request, %w", err)
	}
	spec, err := decodeSpec(body)
	if err != nil {
		return Spec{}, err
	}
	spec.Default()
	return spec, spec.Validate()
}

// decodeSpec is stricter than encoding/json, which takes the last of several
// fields of one name and does not look at their case.
func decodeSpec(body []byte) (Spec, error) {
	var spec Spec
	targets := map[string]any{
		"kind": &spec.Kind, "device": &spec.Device, "code": &spec.Code, "duration": &spec.Duration,
		"times": &spec.Times, "message": &spec.Message, "point": &spec.Point, "once": &spec.Once,
	}
	decoder := json.NewDecoder(bytes.NewReader(body))
	if token, err := decoder.Token(); err != nil || token != json.Delim('{') {
		return spec, errors.New("the request must be a JSON object")
	}
	seen := map[string]bool{}
	for decoder.More() {
		token, err := decoder.Token()
		if err != nil {
			return spec, fmt.Errorf("the request is not JSON, %w", err)
		}
		name, _ := token.(string) // a key is always a string
		target, known := targets[name]
		if !known {
			return spec, fmt.Errorf("%s: there is no such field", name)
		}
		if seen[name] {
			return spec, fmt.Errorf("%s: given twice", name)
		}
		seen[name] = true
		var wrong *json.UnmarshalTypeError
		switch err := decoder.Decode(target); {
		case errors.As(err, &wrong):
			return spec, fmt.Errorf("%s: must be %s, is %s", name, words(wrong.Type.Kind().String()), wrong.Value)
		case err != nil:
			return spec, fmt.Errorf("%s: %w", name, err)
		}
	}
	if _, err := decoder.Token(); err != nil {
		return spec, fmt.Errorf("the request is not JSON, %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return spec, errors.New("the request has more than one JSON object")
	}
	return spec, nil
}

// words says a Go type as JSON calls it.
func words(kind string) string {
	switch kind {
	case "int":
		return "a whole number"
	case "bool":
		return "true or false"
	}
	return "a string"
}
