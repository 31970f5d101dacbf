package manifest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sort"
	"strings"
)

// DefaultMaxBytes is how much input one call reads unless told otherwise:
// 32 MiB, which holds the nodes and slices of some 4,000 eight-GPU machines.
const DefaultMaxBytes = 32 << 20

// Options say how to read.
type Options struct {
	// Stdin is read for the path "-".
	Stdin io.Reader
	// Recursive also reads the folders inside a folder.
	Recursive bool
	// MaxBytes bounds all input together; 0 means DefaultMaxBytes.
	MaxBytes int64
}

// Read reads files, folders (their *.yaml, *.yml and *.json in the order of
// their names) and, for "-", the standard input, and checks the whole by
// [Set.Check]. Every error is an [*Error].
//
// When ctx ends, Read returns at once, with an error that wraps the context's.
// What it was at, such as waiting for the standard input, goes on behind its
// back: this is for programs that end then.
func Read(ctx context.Context, paths []string, opts Options) (*Set, error) {
	type result struct {
		set *Set
		err error
	}
	done := make(chan result, 1)
	go func() {
		set, err := read(paths, opts)
		done <- result{set, err}
	}()
	select {
	case r := <-done:
		return r.set, r.err
	case <-ctx.Done():
		return nil, &Error{Source: Source{File: strings.Join(paths, ", ")}, Msg: "reading was given up", Err: ctx.Err()}
	}
}

func read(paths []string, opts Options) (*Set, error) {
	files, err := expand(paths, opts.Recursive)
	if err != nil {
		return nil, err
	}
	limit := opts.MaxBytes
	if limit <= 0 {
		limit = DefaultMaxBytes
	}
	left, set := limit, newSet(limit)
	for _, path := range files {
		data, err := load(path, opts.Stdin, left, limit)
		if err != nil {
			return nil, err
		}
		left -= int64(len(data))
		if err := set.add(label(path), data); err != nil {
			return nil, err
		}
	}
	if err := set.Check(); err != nil {
		return nil, err
	}
	return set, nil
}

// Parse reads one text under the given file name and checks it like [Read].
func Parse(file string, data []byte) (*Set, error) {
	set := newSet(DefaultMaxBytes)
	if err := set.add(file, data); err != nil {
		return nil, err
	}
	if err := set.Check(); err != nil {
		return nil, err
	}
	return set, nil
}

// label is how errors call a path.
func label(path string) string {
	if path == "-" {
		return "stdin"
	}
	return path
}

// expand replaces folders by their files and refuses a file given twice.
func expand(paths []string, recursive bool) ([]string, error) {
	var files []string
	seen := map[string]bool{}
	add := func(path string) error {
		clean := path
		if path != "-" {
			clean = filepath.Clean(path)
		}
		if seen[clean] {
			return &Error{Source: Source{File: label(path)}, Msg: "is given twice; give each file once"}
		}
		seen[clean] = true
		files = append(files, path)
		return nil
	}
	for _, path := range paths {
		if path == "-" {
			if err := add(path); err != nil {
				return nil, err
			}
			continue
		}
		info, err := os.Stat(path)
		if err != nil {
			return nil, fileError(path, err)
		}
		if !info.IsDir() {
			if err := add(path); err != nil {
				return nil, err
			}
			continue
		}
		inside, err := folder(path, recursive)
		if err != nil {
			return nil, err
		}
		for _, f := range inside {
			if err := add(f); err != nil {
				return nil, err
			}
		}
	}
	return files, nil
}

// folder lists the manifests of a folder, by name.
func folder(dir string, recursive bool) ([]string, error) {
	var files []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if path != dir && !recursive {
				return fs.SkipDir
			}
			return nil
		}
		switch strings.ToLower(filepath.Ext(path)) {
		case ".yaml", ".yml", ".json":
			files = append(files, path)
		}
		return nil
	})
	if err != nil {
		return nil, fileError(dir, err)
	}
	if len(files) == 0 {
		return nil, &Error{Source: Source{File: dir}, Msg: "holds no *.yaml, *.yml or *.json; name the files, or use -R for the folders inside"}
	}
	sort.Strings(files)
	return files, nil
}

// load reads one file whole, at most left bytes.
func load(path string, stdin io.Reader, left, limit int64) ([]byte, error) {
	var r io.Reader
	if path == "-" {
		if stdin == nil {
			return nil, &Error{Source: Source{File: "stdin"}, Msg: "is not available here; name a file"}
		}
		r = stdin
	} else {
		f, err := os.Open(path)
		if err != nil {
			return nil, fileError(path, err)
		}
		defer f.Close()
		r = f
	}
	data, err := io.ReadAll(io.LimitReader(r, left+1))
	if err != nil {
		return nil, fileError(path, err)
	}
	if int64(len(data)) > left {
		return nil, &Error{
			Source: Source{File: label(path), Document: lastNumber(data)},
			Msg:    fmt.Sprintf("the input passes the limit of %s here; leave out kinds that are not read, or raise the limit", size(limit)),
			Err:    ErrTooLarge,
		}
	}
	return data, nil
}

// ErrTooLarge occurs, wrapped in an [Error], when the input passes Options.MaxBytes.
var ErrTooLarge = errors.New("input too large")

// lastNumber is the number of the document in which data ends.
func lastNumber(data []byte) int {
	return 1 + bytes.Count(data, []byte("\n---\n"))
}

// size writes a number of bytes as people do.
func size(n int64) string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 1<<10 && n%(1<<10) == 0:
		return fmt.Sprintf("%d KiB", n>>10)
	}
	return fmt.Sprintf("%d bytes", n)
}

// fileError turns an error of the file system into ours, its words without the path.
func fileError(path string, err error) error {
	msg := err.Error()
	var pe *fs.PathError
	if errors.As(err, &pe) {
		msg = fmt.Sprintf("%s: %v", pe.Op, pe.Err)
	}
	return &Error{Source: Source{File: label(path)}, Msg: msg, Err: err}
}
