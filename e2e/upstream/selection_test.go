package upstream

import (
	"regexp"
	"slices"
	"testing"
)

func TestParseShard(t *testing.T) {
	for text, want := range map[string]Shard{"": {}, "1/1": {1, 1}, "2/4": {2, 4}, "4/4": {4, 4}} {
		got, err := ParseShard(text)
		if err != nil || got != want || got.String() != text {
			t.Errorf("ParseShard(%q) = %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"0/4", "5/4", "1", "/", "a/2", "1/b", "-1/2", "1/0"} {
		if got, err := ParseShard(text); err == nil {
			t.Errorf("ParseShard(%q) = %v, want an error", text, got)
		}
	}
}

func TestEveryTestIsInOneShard(t *testing.T) {
	for place := range 10 {
		in := 0
		for index := 1; index <= 3; index++ {
			if (Shard{Index: index, Count: 3}).Has(place) {
				in++
			}
		}
		if in != 1 {
			t.Errorf("place %d is in %d of 3 shards", place, in)
		}
	}
	if !(Shard{}).Has(7) {
		t.Error("no shard is not everything")
	}
}

func TestSelectionIsChecked(t *testing.T) {
	if err := (Selection{Focus: "a|b", Skip: "c.*"}).Validate(); err != nil {
		t.Error(err)
	}
	for _, s := range []Selection{{Focus: "("}, {Skip: "["}} {
		if s.Validate() == nil {
			t.Errorf("%+v is taken", s)
		}
	}
}

func TestSelectionAsFlags(t *testing.T) {
	s := Selection{LabelFilter: "DRA", Focus: "x y", Skip: "z"}
	want := []string{"--ginkgo.label-filter=DRA", "--ginkgo.focus=x y", "--ginkgo.skip=z"}
	if got := s.args("ginkgo."); !slices.Equal(got, want) {
		t.Errorf("args = %q, want %q", got, want)
	}
}

func TestExactlyMatchesThoseNamesOnly(t *testing.T) {
	names := []string{"[sig-node] DRA [DRA] a+b (c)", "x | y"}
	focus := regexp.MustCompile(exactly(names).Focus)
	for _, name := range names {
		if !focus.MatchString("the suite " + name) {
			t.Errorf("%q does not match %s", name, focus)
		}
	}
	for _, name := range []string{"x", "x | y z", "[sig-node] DRA [DRA] aab (c)"} {
		if focus.MatchString("the suite " + name) {
			t.Errorf("%q matches %s", name, focus)
		}
	}
}
