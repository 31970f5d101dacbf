package fakenvml

// This file makes libraries of older drivers.

import (
	"bytes"
	"debug/elf"
	"fmt"
	"os"
)

// Withhold takes functions out of a library file, as older versions of NVML lack
// them: dlsym does not find them any more. Processes that have the library keep
// what they have. It fails, and changes nothing, if the library lacks one.
//
// The names in the table of the file are what is changed: then they are those of
// no function that anybody looks up.
func Withhold(library string, functions ...string) error {
	data, err := os.ReadFile(library)
	if err != nil {
		return fmt.Errorf("withholding functions, %w", err)
	}
	file, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return fmt.Errorf("withholding functions of %s, %w", library, err)
	}
	section := file.Section(".dynstr")
	if section == nil || section.Offset+section.Size > uint64(len(data)) {
		return fmt.Errorf("withholding functions of %s, it has no names", library)
	}
	names := data[section.Offset : section.Offset+section.Size]
	for _, function := range functions {
		at := bytes.Index(names, []byte("\x00"+function+"\x00"))
		if function == "" || at < 0 {
			return fmt.Errorf("withholding functions of %s, it has no %q", library, function)
		}
		names[at+1] = '-'
	}
	mode := os.FileMode(0o755)
	if info, err := os.Stat(library); err == nil {
		mode = info.Mode().Perm()
	}
	if err := os.WriteFile(library+".new", data, mode); err != nil {
		return fmt.Errorf("withholding functions, %w", err)
	}
	if err := os.Rename(library+".new", library); err != nil {
		return fmt.Errorf("withholding functions, %w", err)
	}
	return nil
}
