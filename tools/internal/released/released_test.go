package released

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

func TestWait(t *testing.T) {
	busy := errors.New("busy")
	for name, tc := range map[string]struct {
		answers []any
		is      error
		says    string
	}{
		"free at once":       {answers: []any{""}},
		"free after a while": {answers: []any{"claim a (gpu-0 of n)", "claim a (gpu-0 of n)", ""}},
		"an error that goes": {answers: []any{busy, ""}},
		"never free":         {answers: []any{"claim a (gpu-0 of n)"}, is: errHeld, says: "claim a (gpu-0 of n)"},
		"never asked":        {answers: []any{busy}, is: busy},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			looks := 0
			err := wait(ctx, time.Millisecond, func(context.Context) ([]string, error) {
				answer := tc.answers[min(looks, len(tc.answers)-1)]
				looks++
				if err, ok := answer.(error); ok {
					return nil, err
				}
				if answer == "" {
					return nil, nil
				}
				return []string{answer.(string)}, nil
			})
			if !errors.Is(err, tc.is) || tc.is == nil && (err != nil || looks != len(tc.answers)) {
				t.Errorf("got %v after %d looks, want %v", err, looks, tc.is)
			}
			if err != nil && !strings.Contains(err.Error(), tc.says) {
				t.Errorf("%v does not say %q", err, tc.says)
			}
		})
	}
}
