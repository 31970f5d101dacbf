package command

import (
	"context"
	"errors"
	"io"
	"sync"
)

// ErrInterrupted is what a command says that ended before it was done.
var ErrInterrupted = errors.New("interrupted")

// Interruptible reads from another reader until ctx ends, and then gives its
// error, also to a Read that waits. The other reader is left to what it is at:
// this is for programs that end then. Nothing is read before it is asked for.
func Interruptible(ctx context.Context, in io.Reader) io.Reader {
	r, w := io.Pipe()
	return &interruptible{PipeReader: r, start: func() {
		context.AfterFunc(ctx, func() { w.CloseWithError(ctx.Err()) })
		go func() {
			_, err := io.Copy(w, in)
			w.CloseWithError(err)
		}()
	}}
}

type interruptible struct {
	*io.PipeReader
	once  sync.Once
	start func()
}

// Read implements io.Reader.
func (i *interruptible) Read(p []byte) (int, error) {
	i.once.Do(i.start)
	return i.PipeReader.Read(p)
}
