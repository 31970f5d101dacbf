// Package buildinfo says what a program was built from, in the same words for
// all of Ladder's programs. It needs the standard library only.
package buildinfo

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// Info is what a program was built from.
type Info struct {
	// Version is the module's, "(devel)" for a build from a work tree.
	Version string `json:"version"`
	// Revision is the commit, empty where the build does not know it.
	Revision string `json:"revision,omitempty"`
	// Modified says that the work tree differed from the commit.
	Modified bool `json:"modified,omitempty"`
	// Time is the commit's, in RFC 3339.
	Time string `json:"time,omitempty"`
	// Go is the version of the compiler, Platform what it compiled for.
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// Read returns what this program was built from.
func Read() Info {
	info, _ := debug.ReadBuildInfo()
	return Of(info)
}

// Of makes an Info of what the linker has left in a program; nil is nothing.
func Of(info *debug.BuildInfo) Info {
	i := Info{Version: "(unknown)", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	if info == nil {
		return i
	}
	if info.Main.Version != "" {
		i.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			i.Revision = s.Value
		case "vcs.modified":
			i.Modified = s.Value == "true"
		case "vcs.time":
			i.Time = s.Value
		}
	}
	return i
}

// Module returns the version of a module that this program was built with, or
// "(unknown)".
func Module(path string) string {
	info, _ := debug.ReadBuildInfo()
	return moduleOf(info, path)
}

func moduleOf(info *debug.BuildInfo, path string) string {
	if info == nil {
		return "(unknown)"
	}
	for _, m := range info.Deps {
		if m.Path != path {
			continue
		}
		if m.Replace != nil && m.Replace.Version != "" {
			return m.Replace.Version
		}
		return m.Version
	}
	return "(unknown)"
}

// Text is the Info for a person, under the name of the program: what it is and,
// after the lines of more, by what it was compiled.
func (i Info) Text(program string, more ...string) string {
	source := i.Revision
	if i.Modified {
		source += ", modified"
	}
	if source != "" {
		source = " (" + source + ")"
	}
	text := program + " " + i.Version + source + "\n"
	for _, line := range more {
		text += line + "\n"
	}
	return text + fmt.Sprintf("%s %s\n", i.Go, i.Platform)
}
