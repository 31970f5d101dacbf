package fault

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// ask sends what a client of another make might send.
func ask(t *testing.T, method, target, body string) (int, string) {
	t.Helper()
	recorder := httptest.NewRecorder()
	Handler(&node{}).ServeHTTP(recorder, httptest.NewRequest(method, target, strings.NewReader(body)))
	if got := recorder.Header().Get("Content-Type"); got != "application/json" {
		t.Errorf("%s %s: the answer is %s", method, target, got)
	}
	return recorder.Code, strings.TrimSpace(recorder.Body.String())
}

func TestDecodingIsStrict(t *testing.T) {
	for name, tc := range map[string]struct{ body, want string }{
		"empty":         {``, "the request must be a JSON object"},
		"list":          {`[]`, "the request must be a JSON object"},
		"text":          {`lost`, "the request must be a JSON object"},
		"unknown field": {`{"kind":"lost","gpu":"gpu-0"}`, "gpu: there is no such field"},
		"other case":    {`{"Kind":"lost"}`, "Kind: there is no such field"},
		"twice":         {`{"kind":"lost","device":"gpu-0","device":"gpu-1"}`, "device: given twice"},
		"number":        {`{"kind":"lost","device":7}`, "device: must be a string, is number"},
		"text as code":  {`{"kind":"xid","device":"gpu-0","code":"79"}`, "code: must be a whole number, is string"},
		"broken code":   {`{"kind":"xid","device":"gpu-0","code":7.9}`, "code: must be a whole number, is number 7.9"},
		"text as once":  {`{"kind":"crash-at","once":"yes"}`, "once: must be true or false, is string"},
		"seconds":       {`{"kind":"slow-prepare","duration":5}`, "duration: must be a string like 1.5s"},
		"no unit":       {`{"kind":"slow-prepare","duration":"5"}`, `duration: must be a time like 1.5s, is "5"`},
		"cut off":       {`{"kind":"lost"`, "the request is not JSON, EOF"},
		"two objects":   {`{"kind":"stale-slice"}{"kind":"lost"}`, "the request has more than one JSON object"},
		"too long":      {`{"message":"` + strings.Repeat("x", maxBody) + `"}`, "reading the request, http: request body too large"},
		"no kind":       {`{}`, `kind: there is no ""; there are xid, lost, remap, slow-prepare, fail-prepare, torn-checkpoint, stale-slice, withhold-slice, crash-at`},
	} {
		code, got := ask(t, "POST", Path, tc.body)
		raw, _ := json.Marshal(tc.want)
		if code != http.StatusBadRequest || got != `{"error":`+string(raw)+`}` {
			t.Errorf("%s: got %d %s, want %s", name, code, got, raw)
		}
	}
}

func TestRequests(t *testing.T) {
	for _, tc := range []struct {
		method, target, body string
		code                 int
		want                 string
	}{
		{"GET", Path, "", 200, `{"faults":[]}`},
		{"DELETE", Path, "", 200, `{"faults":[]}`},
		{"GET", Path + "?device=gpu-0", "", 400, `{"error":"device: GET /v1/faults takes no such parameter"}`},
		{"POST", Path + "?dry=1", `{"kind":"stale-slice"}`, 400, `{"error":"dry: POST /v1/faults takes no such parameter"}`},
		{"DELETE", Path + "?gpu=1", "", 400, `{"error":"gpu: DELETE /v1/faults takes no such parameter"}`},
		{"DELETE", Path + "?id=", "", 400, `{"error":"id: must be given once, with a value"}`},
		{"DELETE", Path + "?id=1&id=2", "", 400, `{"error":"id: must be given once, with a value"}`},
		{"PUT", Path, "{}", 405, `{"error":"/v1/faults does not take PUT"}`},
		{"GET", "/v2/faults", "", 404, `{"error":"there is nothing at /v2/faults; faults are at /v1/faults"}`},
		{"POST", Path, `{"kind":"lost","device":"gpu-9"}`, 404, `{"error":"injecting, there is no device \"gpu-9\"; this node has gpu-0, gpu-1"}`},
		// The wire format, byte for byte: older clients meet newer drivers.
		{
			"POST", Path, ` {"code":79,"kind":"xid","device":"gpu-0"} `, 201,
			`{"id":"1","kind":"xid","device":"gpu-0","code":79,"since":"2026-11-01T12:00:00Z"}`,
		},
		{
			"POST", Path, `{"kind":"fail-prepare"}`, 201,
			`{"id":"1","kind":"fail-prepare","message":"fault injected","since":"2026-11-01T12:00:00Z"}`,
		},
		{
			"POST", Path, `{"kind":"slow-prepare","duration":"1m30s"}`, 201,
			`{"id":"1","kind":"slow-prepare","duration":"1m30s","since":"2026-11-01T12:00:00Z"}`,
		},
		{
			"POST", Path, `{"kind":"crash-at","point":"after-unprepare-cdi","once":true}`, 201,
			`{"id":"1","kind":"crash-at","point":"after-unprepare-cdi","once":true,"since":"2026-11-01T12:00:00Z"}`,
		},
	} {
		code, got := ask(t, tc.method, tc.target, tc.body)
		if code != tc.code || got != tc.want {
			t.Errorf("%s %s %s: got %d %s, want %d %s", tc.method, tc.target, tc.body, code, got, tc.code, tc.want)
		}
	}
}
