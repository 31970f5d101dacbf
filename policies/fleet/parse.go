package fleet

// This file decodes fleet files.

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// MaxFileSize is the most bytes that [Parse] reads. A fleet file describes
// kinds of nodes, not nodes: real ones have kilobytes.
const MaxFileSize = 4 << 20

// Parse reads one fleet, sets defaults and validates it. name is the file's
// name; every error starts with it and, where there is one, says the field.
func Parse(name string, r io.Reader) (*Fleet, error) {
	document, err := singleDocument(r)
	if err != nil {
		return nil, fmt.Errorf("reading fleet %s, %w", name, err)
	}
	f, err := decode(document)
	if err != nil {
		return nil, fmt.Errorf("decoding fleet %s, %w", name, err)
	}
	f.Default()
	if err := f.Validate().ToAggregate(); err != nil {
		return nil, fmt.Errorf("validating fleet %s, %w", name, err)
	}
	return f, nil
}

// singleDocument returns the only YAML document of r that holds something.
func singleDocument(r io.Reader) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, MaxFileSize+1))
	if err != nil {
		return nil, err
	}
	if len(data) > MaxFileSize {
		return nil, fmt.Errorf("the file is larger than %d bytes", MaxFileSize)
	}
	var found []byte
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(data)))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		var content any
		if err := yaml.Unmarshal(document, &content); err != nil {
			return nil, err
		}
		if content == nil {
			continue
		}
		if found != nil {
			return nil, errors.New("the file has more than one document")
		}
		found = document
	}
	if found == nil {
		return nil, errors.New("the file is empty")
	}
	return found, nil
}

// decode is strict: fields that are unknown, given twice or of another type
// are errors with a path.
func decode(document []byte) (*Fleet, error) {
	data, err := yaml.YAMLToJSONStrict(document)
	if err != nil {
		// The library lists its findings one a line.
		return nil, errors.New(strings.Join(strings.Fields(err.Error()), " "))
	}
	if err := checkQuantities(data); err != nil {
		return nil, err
	}
	f := &Fleet{}
	strict, err := kjson.UnmarshalStrict(data, f)
	var wrong *json.UnmarshalTypeError
	switch {
	case errors.As(err, &wrong) && wrong.Field == "":
		return nil, fmt.Errorf("the document is a %s, not an object", wrong.Value)
	case errors.As(err, &wrong):
		return nil, fmt.Errorf("%s: must be of type %s, is a %s", wrong.Field, wrong.Type, wrong.Value)
	case err != nil:
		return nil, err
	}
	return f, utilerrors.NewAggregate(strict)
}

// checkQuantities looks at the quantities before the decoder does, since a
// quantity's own error does not say which field it is about. What is not where
// it should be is left to the decoder.
func checkQuantities(data []byte) error {
	var document map[string]any
	if err := json.Unmarshal(data, &document); err != nil {
		return nil //nolint:nilerr // the strict decoder that comes next says it better
	}
	var errs field.ErrorList
	for _, list := range []struct {
		name   string
		fields []string
	}{
		{"boards", []string{"memory"}},
		{"groups", []string{"cpu", "memory"}},
	} {
		items, _ := document[list.name].([]any)
		for i, item := range items {
			object, _ := item.(map[string]any)
			for _, name := range slices.Sorted(slices.Values(list.fields)) {
				value, given := object[name]
				if !given {
					continue
				}
				path := field.NewPath(list.name).Index(i).Child(name)
				switch value.(type) {
				case string, float64:
				default:
					errs = append(errs, field.TypeInvalid(path, value, "must be a quantity"))
					continue
				}
				quantity, err := resource.ParseQuantity(fmt.Sprint(value))
				if err != nil {
					errs = append(errs, field.Invalid(path, value, "must be a quantity, such as 128 or 1Ti"))
				} else if quantity.Sign() <= 0 {
					errs = append(errs, field.Invalid(path, value, "must be more than zero"))
				}
			}
		}
	}
	return errs.ToAggregate()
}
