package main

import (
	"encoding/json"
	"fmt"
	"math/rand"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/tools/internal/decision"
)

// orders is how many orders of the documents each case is run in.
const orders = 5

// expectation is NAME.expect.json.
type expectation struct {
	Why       string             `json:"why"`
	Exit      int                `json:"exit"`
	Args      []string           `json:"args"`
	Decisions []expectedDecision `json:"decisions"`
	Field     string             `json:"field"`
	Document  string             `json:"document"`
}

// expectedDecision says what a decision must have; what is nil is free.
type expectedDecision struct {
	Namespace  *string                     `json:"namespace"`
	Pod        *string                     `json:"pod"`
	Outcome    *string                     `json:"outcome"`
	Tier       *string                     `json:"tier"`
	Node       *string                     `json:"node"`
	Devices    []expectedDevice            `json:"devices"`
	Rejections map[string]map[string]int32 `json:"rejections"`
}

type expectedDevice struct {
	Pool   string `json:"pool"`
	Device string `json:"device"`
}

// Every given case has the right answer, and the order of the documents does
// not matter to a byte.
func TestGivenCases(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(caseDir, "*.expect.json"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no cases in %s: %v", caseDir, err)
	}
	for _, file := range files {
		base := strings.TrimSuffix(file, ".expect.json")
		t.Run(filepath.Base(base), func(t *testing.T) {
			var want expectation
			raw, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(raw, &want); err != nil {
				t.Fatal(err)
			}
			text, err := os.ReadFile(base + ".yaml")
			if err != nil {
				t.Fatal(err)
			}
			documents := strings.Split(string(text), "\n---\n")
			first := ""
			for order := range orders {
				shuffled := append([]string{}, documents...)
				if order > 0 {
					rand.New(rand.NewSource(int64(order))).Shuffle(len(shuffled), func(i, j int) {
						shuffled[i], shuffled[j] = shuffled[j], shuffled[i]
					})
				}
				input := write(t, t.TempDir(), "input.yaml", strings.Join(shuffled, "\n---\n"))
				r := ladder(t, append([]string{"decide", "-f", input, "-o", "json"}, want.Args...)...).want(t, want.Exit)
				if want.Exit == 2 {
					want.judgeRefusal(t, r, shuffled)
					continue
				}
				want.judge(t, r.stdout)
				if order == 0 {
					first = r.stdout
				} else if r.stdout != first {
					t.Fatalf("order %d of the documents gives other bytes", order)
				}
			}
		})
	}
}

func (want *expectation) judgeRefusal(t *testing.T, r result, documents []string) {
	t.Helper()
	kind := regexp.MustCompile(`(?m)^kind: "?` + want.Document + `"?$`)
	number := 0
	for i, d := range documents {
		if number == 0 && kind.MatchString(d) {
			number = i + 1
		}
	}
	if place := fmt.Sprintf("input.yaml: document %d (%s ", number, want.Document); !strings.Contains(r.stderr, place) {
		t.Errorf("stderr does not name %q: %s", place, r.stderr)
	}
	if !strings.Contains(r.stderr, want.Field+":") {
		t.Errorf("stderr does not name the field %s: %s", want.Field, r.stderr)
	}
	if r.stdout != "" {
		t.Errorf("there is something on stdout: %s", r.stdout)
	}
}

func (want *expectation) judge(t *testing.T, stdout string) {
	t.Helper()
	var got decision.List
	if err := json.Unmarshal([]byte(stdout), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Decisions) != len(want.Decisions) {
		t.Fatalf("%d decisions, want %d", len(got.Decisions), len(want.Decisions))
	}
	for i, w := range want.Decisions {
		d := got.Decisions[i]
		for field, pair := range map[string]struct {
			want *string
			got  string
		}{
			"namespace": {w.Namespace, d.Namespace}, "pod": {w.Pod, d.Pod}, "outcome": {w.Outcome, string(d.Outcome)},
			"tier": {w.Tier, d.Tier}, "node": {w.Node, d.Node},
		} {
			if pair.want != nil && *pair.want != pair.got {
				t.Errorf("decision %d: %s is %q, want %q", i, field, pair.got, *pair.want)
			}
		}
		var devices []expectedDevice
		for _, x := range d.Devices {
			devices = append(devices, expectedDevice{x.Pool, x.Device})
		}
		if len(devices)+len(w.Devices) > 0 && !reflect.DeepEqual(devices, w.Devices) {
			t.Errorf("decision %d: devices %v, want %v", i, devices, w.Devices)
		}
		for tier, codes := range w.Rejections {
			have := map[string]int32{}
			for _, e := range d.Tiers {
				for _, r := range e.Rejections {
					if e.Name == tier && r.Code != v1alpha1.ReasonLowerRank && r.Code != v1alpha1.ReasonSelected {
						have[string(r.Code)] = r.Count
					}
				}
			}
			if !reflect.DeepEqual(have, codes) {
				t.Errorf("decision %d, tier %s: rejections %v, want %v", i, tier, have, codes)
			}
		}
	}
}
