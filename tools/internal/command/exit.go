package command

import (
	"errors"
	"fmt"

	"gpuladder.dev/ladder/policies/journal"
	"gpuladder.dev/ladder/policies/manifest"
)

// Exit codes, as the package says.
const (
	CodeDone         = 0
	CodeFailed       = 1
	CodeBadInput     = 2
	CodeNotAllocated = 3
)

// Exit ends a command with a code. Err is printed where it is not nil.
type Exit struct {
	Code int
	Err  error
}

func (e *Exit) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit %d", e.Code)
	}
	return e.Err.Error()
}

// Unwrap returns what is printed.
func (e *Exit) Unwrap() error { return e.Err }

// BadInput ends a command with code 2.
func BadInput(err error) error { return &Exit{Code: CodeBadInput, Err: err} }

// Failed ends a command with code 1, or 2 where the input is to blame.
func Failed(err error) error {
	var m *manifest.Error
	var j *journal.Error
	if errors.As(err, &m) || errors.As(err, &j) {
		return BadInput(err)
	}
	return &Exit{Code: CodeFailed, Err: err}
}

// Printed ends a command whose last act was to print.
func Printed(err error) error {
	if err == nil {
		return nil
	}
	return Failed(fmt.Errorf("printing the result, %w", err))
}
