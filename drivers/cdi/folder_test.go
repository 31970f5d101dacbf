package cdi

import (
	"os"
	"testing"
)

// TestFilesOfOtherProcesses: what is on the disk counts, not what this process
// has written.
func TestFilesOfOtherProcesses(t *testing.T) {
	path := t.TempDir()
	one, other := NewFolder(path, driver), NewFolder(path, driver)
	claim, changed := claimOf(device("a", "gpu-0", "H100")), claimOf(device("a", "gpu-1", "H100"))
	if err := one.Write(boot, uid, claim, editsOf(claim)); err != nil {
		t.Fatal(err)
	}
	for name, folder := range map[string]*Folder{"the one that wrote it": one, "another one": other} {
		if !folder.Has(boot, uid, claim) || folder.Has(boot, uid, changed) {
			t.Errorf("%s does not tell right for what there is a file", name)
		}
	}
	if err := other.Write(boot, uid, changed, editsOf(changed)); err != nil {
		t.Fatal(err)
	}
	if one.Has(boot, uid, claim) || !one.Has(boot, uid, changed) {
		t.Error("a file that was written by another process is not seen")
	}
	if err := other.Write(boot, uid, claim, Edits{"gpu-0": {Env: []string{"A=b"}}}); err != nil {
		t.Fatal(err)
	}
	if !one.Has(boot, uid, claim) {
		t.Error("a file with other edits for the same devices is not taken")
	}
	if err := os.Remove(one.Path(uid)); err != nil {
		t.Fatal(err)
	}
	if one.Has(boot, uid, claim) {
		t.Error("a file that is gone passes for one")
	}
}
