package plugin

import (
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// leave makes an empty file, and the folder that it is in.
func leave(t *testing.T, path string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

func present(t *testing.T, path string) bool {
	t.Helper()
	_, err := os.Lstat(path)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return err == nil
}

// TestTemporaryFilesOfAKilledDriver are removed by one that runs alone, with
// those of the library; while another runs they may be that one's.
func TestTemporaryFilesOfAKilledDriver(t *testing.T) {
	n := newNode(t, 1)
	left := []string{
		filepath.Join(n.config.DataFolder, ".checkpoint.json.123.tmp"),
		filepath.Join(n.config.DataFolder, ".health.json.123.previous.tmp"),
		filepath.Join(n.config.DataFolder, metadataFolder, "team-a_c", "accelerator", ".metadata.json.123.tmp"),
		filepath.Join(n.config.CDIFolder, ".gpu.gpuladder.dev_metadata_c_accelerator.json.123.tmp"),
	}
	claim := filepath.Join(n.config.CDIFolder, ".gpu.gpuladder.dev-claim_c.json.123.tmp") // these are under the checkpoint's lock
	others := []string{
		filepath.Join(n.config.CDIFolder, ".gpu.example.com-claim_c.json.123.tmp"),
		filepath.Join(n.config.CDIFolder, ".gpu.gpuladder.device.json.123.tmp"),
		filepath.Join(n.config.CDIFolder, "spec.123.tmp"),
	}
	expect := func(when string, want bool) {
		t.Helper()
		for _, path := range left {
			if present(t, path) != want {
				t.Errorf("%s: %s is there: %v", when, path, !want)
			}
		}
		for _, path := range others {
			if !present(t, path) {
				t.Errorf("%s: %s of someone else is gone", when, path)
			}
		}
	}
	for _, path := range append(append([]string{claim}, left...), others...) {
		leave(t, path)
	}
	n.start()
	expect("at the start", false)
	if present(t, claim) {
		t.Error("the file of a claim is left")
	}

	for _, path := range left { // as if the one that runs were writing
		leave(t, path)
	}
	stopOld := n.stop
	n.config.PodUID = "pod-2"
	n.start()
	expect("beside another", true)
	if err := stopOld(); err != nil {
		t.Fatal(err)
	}
	if err := n.stop(); err != nil {
		t.Fatal(err)
	}
	n.start()
	expect("alone again", false)
}

// deaf makes a socket on which nobody listens, as a killed process leaves it.
func deaf(t *testing.T, path string) {
	t.Helper()
	listener := listen(t, path)
	listener.SetUnlinkOnClose(false)
	if err := listener.Close(); err != nil {
		t.Fatal(err)
	}
}

func listen(t *testing.T, path string) *net.UnixListener {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		t.Fatal(err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = listener.Close() })
	return listener
}

func TestSocketsOfAKilledDriver(t *testing.T) {
	n := newNode(t, 1)
	data, registrar := n.config.DataFolder, n.config.RegistrarFolder
	dead := []string{
		filepath.Join(data, "dra-killed.sock"), filepath.Join(data, "dra.sock"),
		filepath.Join(registrar, "gpu.gpuladder.dev-killed-reg.sock"), filepath.Join(registrar, "gpu.gpuladder.dev-reg.sock"),
	}
	for _, path := range dead {
		deaf(t, path)
	}
	stay := []string{
		filepath.Join(data, "dra-alive.sock"), filepath.Join(registrar, "gpu.gpuladder.dev-alive-reg.sock"),
	}
	for _, path := range stay {
		listen(t, path)
	}
	// Of others, or no sockets at all.
	for _, path := range []string{
		filepath.Join(data, "fault.sock"), filepath.Join(registrar, "gpu.example.com-killed-reg.sock"),
		filepath.Join(registrar, "gpu.gpuladder.device-killed-reg.sock"), filepath.Join(registrar, "dra-hash-reg.sock"),
	} {
		deaf(t, path)
		stay = append(stay, path)
	}
	file := filepath.Join(data, "dra-file.sock")
	leave(t, file)
	stay = append(stay, file)
	// One that is bound and does not listen yet.
	starting := filepath.Join(data, "dra-starting.sock")
	stay = append(stay, starting)
	socket, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err == nil {
		t.Cleanup(func() { _ = syscall.Close(socket) })
		err = syscall.Bind(socket, &syscall.SockaddrUnix{Name: starting})
	}
	if err != nil {
		t.Fatal(err)
	}
	if !refuses(starting) {
		t.Error("the test is wrong: it answers")
	}
	timer := time.AfterFunc(socketPause/5, func() {
		if err := syscall.Listen(socket, 1); err != nil {
			t.Error(err)
		}
	})
	defer timer.Stop()
	n.start()
	for _, path := range dead {
		if present(t, path) {
			t.Errorf("%s is left", path)
		}
	}
	for _, path := range stay {
		if !present(t, path) {
			t.Errorf("%s is gone", path)
		}
	}
	n.register()
}

// TestNoSocketsNoWait: a driver that finds nothing does not pause.
func TestNoSocketsNoWait(t *testing.T) {
	n := newNode(t, 1)
	driver, err := New(t.Context(), n.config)
	if err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	for range 3 {
		if err := driver.removeSockets(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if took := time.Since(begun); took > 2*socketPause {
		t.Errorf("it took %v", took)
	}
}
