package health

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"gpuladder.dev/ladder/drivers/inventory"
)

func TestFilesThatCanNotBeUsed(t *testing.T) {
	w := newWard(t)
	w.see(trouble("gpu-0", "bus", inventory.Failed))
	for name, content := range map[string]string{
		"torn":  `{"schema":1,"boo`,
		"newer": `{"schema":2,"bootID":"boot-1","troubles":[]}`,
		"empty": ``,
	} {
		if err := os.WriteFile(w.path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		m, err := New(filepath.Dir(w.path), w.boot, w.clock, recovery)
		if err == nil || !strings.Contains(err.Error(), w.path) {
			t.Errorf("%s: the error is %v", name, err)
		}
		if got, err := m.Observe(inventory.Report{Troubles: []inventory.Trouble{trouble("gpu-0", "bus", inventory.Failed)}}); err != nil || len(got) != 1 {
			t.Errorf("%s: going on brings %v, %v", name, got, err)
		}
		if _, err := New(filepath.Dir(w.path), w.boot, w.clock, recovery); err != nil {
			t.Errorf("%s: the file is not mended: %v", name, err)
		}
	}
}

// TestDamageCostsOneChange: what was known before the last change still is, with
// its times, and the file is whole again after the next observation.
func TestDamageCostsOneChange(t *testing.T) {
	for name, damage := range map[string]func(path string) error{
		"torn":  func(path string) error { return os.Truncate(path, 40) },
		"empty": func(path string) error { return os.Truncate(path, 0) },
		"gone":  os.Remove,
	} {
		t.Run(name, func(t *testing.T) {
			w := newWard(t)
			lost, latched := trouble("gpu-0", "bus", inventory.Failed), trouble("gpu-1", "xid", inventory.Suspect)
			latched.Latched = true
			w.see(lost, latched)
			before := w.taints("gpu-1")
			w.after(time.Minute)
			w.see(lost, latched, trouble("gpu-2", "remap", inventory.Suspect))
			if err := damage(w.path); err != nil {
				t.Fatal(err)
			}
			m, err := New(filepath.Dir(w.path), w.boot, w.clock, recovery)
			var damaged *DamagedError
			if !errors.As(err, &damaged) || !damaged.Recovered || damaged.Path != w.path {
				t.Fatalf("the error is %#v", err)
			}
			w.Monitor = m
			expect(t, "known", w.taints("gpu-1"), before)
			expect(t, "the hardware tells again", w.see(lost, trouble("gpu-2", "remap", inventory.Suspect)), "gpu-2 healthy>suspect Remap")
			w.restart()
			expect(t, "after another restart", w.taints("gpu-1"), before)
			if severity, _ := w.Severity("gpu-2"); severity != inventory.Suspect {
				t.Errorf("gpu-2 is %v", severity)
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(w.path), CorruptFileName)); (err == nil) != (name != "gone") {
				t.Errorf("the damaged file: %v", err)
			}
		})
	}
}

// TestDamageTwice: a damaged file does not become the one before, so the next
// damage is survived too.
func TestDamageTwice(t *testing.T) {
	w := newWard(t)
	lost := trouble("gpu-0", "bus", inventory.Failed)
	w.see(lost)
	for i := range 3 {
		w.after(time.Second)
		other := trouble("gpu-1", "bus", inventory.Failed)
		other.Message = strings.Repeat("x", i)
		w.see(lost, other)
		if err := os.Truncate(w.path, 30); err != nil {
			t.Fatal(err)
		}
		m, err := New(filepath.Dir(w.path), w.boot, w.clock, recovery)
		if damaged := new(DamagedError); !errors.As(err, &damaged) || !damaged.Recovered {
			t.Fatalf("time %d: the error is %v", i, err)
		}
		w.Monitor = m
		if severity, _ := w.Severity("gpu-0"); severity != inventory.Failed {
			t.Fatalf("time %d: gpu-0 is %v", i, severity)
		}
	}
}

// TestDamageAndABoot: nothing of the last boot counts in this one.
func TestDamageAndABoot(t *testing.T) {
	w := newWard(t)
	w.see(trouble("gpu-0", "bus", inventory.Failed))
	w.see(trouble("gpu-0", "bus", inventory.Failed), trouble("gpu-1", "bus", inventory.Failed))
	if err := os.Truncate(w.path, 30); err != nil {
		t.Fatal(err)
	}
	m, err := New(filepath.Dir(w.path), "boot-2", w.clock, recovery)
	if damaged := new(DamagedError); !errors.As(err, &damaged) || damaged.Recovered {
		t.Errorf("the error is %v", err)
	}
	if severity, _ := m.Severity("gpu-0"); severity != inventory.Healthy {
		t.Errorf("gpu-0 is %v", severity)
	}
}
