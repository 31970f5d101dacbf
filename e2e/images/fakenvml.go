package images

// The simulated NVML in an image.

import (
	"context"
	"fmt"
	"path/filepath"

	"gpuladder.dev/ladder/drivers/fakenvml"
	"gpuladder.dev/ladder/e2e/cluster/binaries"
)

// fakeNVML compiles the library of this tree into a folder of its own below
// dir. The same source makes the same bytes.
func fakeNVML(ctx context.Context, dir string) (string, error) {
	unlock, err := binaries.Lock(ctx, filepath.Join(dir, "."+fakenvml.LibraryName+".lock"), func() {})
	if err != nil {
		return "", fmt.Errorf("locking the cache, %w", err)
	}
	defer unlock()
	library := filepath.Join(dir, fakenvml.LibraryName)
	return library, fakenvml.Build(ctx, library)
}
