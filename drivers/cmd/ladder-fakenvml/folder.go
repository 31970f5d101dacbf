package main

// This file finds the boards that a command is about.

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/pflag"

	"gpuladder.dev/ladder/drivers/fakenvml"
)

// usualRoot is where the chart's Pods have the driver root.
const usualRoot = "/driver-root"

// folder is the folder of a library, as the flags say it.
type folder struct{ dir, root string }

func (f *folder) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&f.dir, "dir", "", "the folder of the library (default: $"+fakenvml.DirVariable+")")
	flags.StringVar(&f.root, "root", "", "the driver root that 'install' has laid out, in the place of --dir (default: "+usualRoot+", if it is there)")
}

// find returns the folder, in which there are boards.
func (f *folder) find() (string, error) {
	dir, root := f.dir, f.root
	if dir != "" && root != "" {
		return "", errors.New("say one of --dir and --root")
	}
	if dir == "" && root == "" {
		if dir = os.Getenv(fakenvml.DirVariable); dir == "" {
			root = usualRoot
		}
	}
	if dir != "" {
		if _, err := (fakenvml.Control{Dir: dir}).Installed(); err != nil {
			return "", fmt.Errorf("--dir, %w", err)
		}
		return dir, nil
	}
	dir, err := fakenvml.FolderIn(root)
	switch {
	case errors.Is(err, fs.ErrNotExist) && f.root == "":
		return "", errors.New("--dir or --root is required")
	case err != nil:
		return "", fmt.Errorf("--root, %w", err)
	}
	return dir, nil
}
