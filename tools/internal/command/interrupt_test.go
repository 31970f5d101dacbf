package command

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
)

func TestInterruptible(t *testing.T) {
	got, err := io.ReadAll(Interruptible(t.Context(), strings.NewReader("all of it")))
	if err != nil || string(got) != "all of it" {
		t.Errorf("read %q, %v", got, err)
	}
	broken := errors.New("broken")
	if _, err := io.ReadAll(Interruptible(t.Context(), iotest.ErrReader(broken))); !errors.Is(err, broken) {
		t.Errorf("got %v, want the reader's error", err)
	}
}

// A read that waits for ever ends with the context.
func TestInterruptibleIsInterrupted(t *testing.T) {
	in, writer := io.Pipe()
	defer writer.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		_, _ = writer.Write([]byte("some"))
		cancel()
	}()
	if _, err := io.ReadAll(Interruptible(ctx, in)); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want that it was cancelled", err)
	}
}
