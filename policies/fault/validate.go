package fault

// This file says which faults make sense, and puts errors into words.

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Bounds of what a fault may ask for.
const (
	// MaxXID leaves room above NVIDIA's catalog, which ends at 172.
	MaxXID = 1023
	// MaxDuration is longer than kubelet waits for a prepare.
	MaxDuration = Duration(time.Hour)
	// MaxMessage is the most bytes of a message.
	MaxMessage = 1024
	// MaxTimes is the most prepares that one fault fails by number.
	MaxTimes = 1 << 20
)

// DefaultMessage is what a prepare says that fails without another message.
const DefaultMessage = "fault injected"

// fields is what each kind may have; a star marks what it must have.
var fields = map[Kind][]string{
	XID:            {"device*", "code*"},
	Lost:           {"device*"},
	Remap:          {"device*"},
	SlowPrepare:    {"duration*"},
	FailPrepare:    {"times", "message"},
	TornCheckpoint: {},
	StaleSlice:     {},
	WithholdSlice:  {},
	CrashAt:        {"point*", "once"},
}

// Default sets what was left out.
func (s *Spec) Default() {
	if s.Kind == FailPrepare && s.Message == "" {
		s.Message = DefaultMessage
	}
}

// Validate says what is wrong with a fault; all of it, each with its field.
// Whether the node has the device is not looked at.
func (s *Spec) Validate() error {
	allowed, known := fields[s.Kind]
	if !known {
		return fmt.Errorf("kind: there is no %q; there are %s", s.Kind, join(Kinds()))
	}
	var errs []string
	for _, field := range []struct {
		name  string
		given bool
	}{
		{"device", s.Device != ""},
		{"code", s.Code != 0},
		{"duration", s.Duration != 0},
		{"times", s.Times != 0},
		{"message", s.Message != ""},
		{"point", s.Point != ""},
		{"once", s.Once},
	} {
		must := slices.Contains(allowed, field.name+"*")
		switch {
		case must && !field.given:
			errs = append(errs, fmt.Sprintf("%s: %s needs one", field.name, s.Kind))
		case field.given && !must && !slices.Contains(allowed, field.name):
			errs = append(errs, fmt.Sprintf("%s: %s takes none", field.name, s.Kind))
		}
	}
	if s.Code < 0 || s.Code > MaxXID {
		errs = append(errs, fmt.Sprintf("code: must be 1 to %d, is %d", MaxXID, s.Code))
	}
	if s.Duration < 0 || s.Duration > MaxDuration {
		errs = append(errs, fmt.Sprintf("duration: must be above 0 and up to %v, is %v", time.Duration(MaxDuration), time.Duration(s.Duration)))
	}
	if s.Times < 0 || s.Times > MaxTimes {
		errs = append(errs, fmt.Sprintf("times: must be 0 to %d, is %d", MaxTimes, s.Times))
	}
	if len(s.Message) > MaxMessage {
		errs = append(errs, fmt.Sprintf("message: must be at most %d bytes, is %d", MaxMessage, len(s.Message)))
	}
	if s.Point != "" && !slices.Contains(CrashPoints(), s.Point) {
		errs = append(errs, fmt.Sprintf("point: there is no %q; there are %s", s.Point, join(CrashPoints())))
	}
	if len(errs) > 0 {
		return errors.New(strings.Join(errs, "; "))
	}
	return nil
}

// UnknownDevice is the [ErrNotFound] about a device; known are those there are.
func UnknownDevice(device string, known []string) error {
	if len(known) == 0 {
		return &notFound{fmt.Sprintf("there is no device %q: this node has none", device)}
	}
	return &notFound{fmt.Sprintf("there is no device %q; this node has %s", device, join(known))}
}

// UnknownFault is the [ErrNotFound] about the ID of a fault.
func UnknownFault(id string) error {
	return &notFound{fmt.Sprintf("no fault %q is in force", id)}
}

type notFound struct{ words string }

func (e *notFound) Error() string { return e.words }
func (e *notFound) Unwrap() error { return ErrNotFound }

func join[T ~string](names []T) string {
	texts := make([]string, len(names))
	for i, name := range names {
		texts[i] = string(name)
	}
	return strings.Join(texts, ", ")
}
