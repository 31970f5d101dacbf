// Package fakenvmltest builds the simulated NVML for the tests of a package.
package fakenvmltest

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"gpuladder.dev/ladder/drivers/fakenvml"
)

// Main builds the library, says where it is, runs the tests and returns their
// exit code. Once for all tests, since a process opens only one:
//
//	var library string
//
//	func TestMain(m *testing.M) { os.Exit(fakenvmltest.Main(m, &library)) }
func Main(m *testing.M, library *string) int {
	folder, err := os.MkdirTemp("", "fakenvml-test-")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(folder)
	*library = filepath.Join(folder, fakenvml.LibraryName)
	if err := fakenvml.Build(context.Background(), *library); err != nil {
		panic(err)
	}
	return m.Run()
}
