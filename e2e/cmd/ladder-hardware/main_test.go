package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestExitCodes(t *testing.T) {
	bare, busy := t.TempDir(), t.TempDir()
	device := filepath.Join(busy, "bus/pci/devices/0000:3b:00.0")
	if err := os.MkdirAll(device, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{"vendor": "0x10de\n", "class": "0x030200\n"} {
		if err := os.WriteFile(filepath.Join(device, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	report := filepath.Join(t.TempDir(), "reports")
	for name, test := range map[string]struct {
		args []string
		code int
		want string
	}{
		"no GPU":   {[]string{"--sysfs", bare, "--driver-root", bare}, codeNoGPU, "no NVIDIA GPU here"},
		"a flag":   {[]string{"--gpus", "8"}, codeUsage, "unknown flag"},
		"a word":   {[]string{"now"}, codeUsage, "now"},
		"no smi":   {[]string{"--sysfs", busy, "--driver", "/none", "--assets", bare, "--nvidia-smi", "/none", "--report", report}, codeFailed, "has not passed"},
		"and help": {[]string{"--help"}, codePassed, ""},
	} {
		var out, errs bytes.Buffer
		if code := run(t.Context(), test.args, &out, &errs); code != test.code || !strings.Contains(errs.String(), test.want) {
			t.Errorf("%s: ended with %d, said %s", name, code, errs.String())
		}
		if name == "no smi" && !strings.Contains(out.String(), "| FAIL | ask nvidia-smi |") {
			t.Errorf("the report is %s", out.String())
		}
	}
	if files, _ := filepath.Glob(filepath.Join(report, "*")); len(files) != 2 {
		t.Errorf("written are %v", files)
	}
}
