package lab

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/yaml"
)

func TestPortsAreReserved(t *testing.T) {
	first, err := reservePort()
	if err != nil {
		t.Fatal(err)
	}
	if first.port < firstPort || first.port >= lastPort {
		t.Errorf("port %d is outside the range", first.port)
	}
	if second := tryPort(first.port); second != nil {
		second.release()
		t.Error("the same port is given twice")
	}
	// The port itself is free for the component.
	listener, err := net.Listen("tcp4", loopback(first.port))
	if err != nil {
		t.Fatalf("the reserved port can't be used, %v", err)
	}
	first.release()
	if again := tryPort(first.port); again != nil {
		again.release()
		t.Error("a port on which somebody listens is given")
	}
	listener.Close()
	again := tryPort(first.port)
	if again == nil {
		t.Fatal("a port that was released is not given again")
	}
	again.release()
}

func TestManyPortsDiffer(t *testing.T) {
	seen := map[int]bool{}
	for range 100 {
		r, err := reservePort()
		if err != nil {
			t.Fatal(err)
		}
		defer r.release()
		if seen[r.port] {
			t.Fatalf("port %d is given twice", r.port)
		}
		seen[r.port] = true
	}
}

func parse(t *testing.T, p pair) *x509.Certificate {
	t.Helper()
	cert, err := tls.X509KeyPair(p.Cert, p.Key)
	if err != nil {
		t.Fatal(err)
	}
	parsed, err := x509.ParseCertificate(cert.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

func TestCertificates(t *testing.T) {
	ca, err := newAuthority("one")
	if err != nil {
		t.Fatal(err)
	}
	other, err := newAuthority("other")
	if err != nil {
		t.Fatal(err)
	}
	pool := func(pem []byte) *x509.CertPool {
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(pem) {
			t.Fatal("no certificate in the authority's PEM")
		}
		return roots
	}
	servingPair, err := ca.serving("server", "kubernetes.default.svc")
	if err != nil {
		t.Fatal(err)
	}
	serving := parse(t, servingPair)
	for _, name := range []string{"127.0.0.1", "localhost", "kubernetes.default.svc", serviceIP.String()} {
		if _, err := serving.Verify(x509.VerifyOptions{Roots: pool(ca.PEM), DNSName: name}); err != nil {
			t.Errorf("as %s: %v", name, err)
		}
	}
	if _, err := serving.Verify(x509.VerifyOptions{Roots: pool(ca.PEM), DNSName: "example.test"}); err == nil {
		t.Error("the certificate is good for any name")
	}

	clientPair, err := ca.client("jane", "friends", "others")
	if err != nil {
		t.Fatal(err)
	}
	client := parse(t, clientPair)
	usage := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if _, err := client.Verify(x509.VerifyOptions{Roots: pool(ca.PEM), KeyUsages: usage}); err != nil {
		t.Error(err)
	}
	if _, err := client.Verify(x509.VerifyOptions{Roots: pool(other.PEM), KeyUsages: usage}); err == nil {
		t.Error("another authority's certificate is trusted")
	}
	if _, err := client.Verify(x509.VerifyOptions{Roots: pool(ca.PEM)}); err == nil {
		t.Error("a user's certificate is good for a server")
	}
	slices.Sort(client.Subject.Organization) // a set, in the certificate
	if client.Subject.CommonName != "jane" || !slices.Equal(client.Subject.Organization, []string{"friends", "others"}) {
		t.Errorf("subject = %v", client.Subject)
	}
}

func TestPrivateFiles(t *testing.T) {
	dir := t.TempDir()
	ca, err := writePKI(dir)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "kubeconfig")
	if err := writeKubeconfig(path, "https://127.0.0.1:1", ca, userLadderScheduler); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, entry := range entries {
		if info, err := entry.Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v, %v", entry.Name(), info.Mode(), err)
		}
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	cert := parse(t, pair{Cert: config.CertData, Key: config.KeyData})
	if want := "system:serviceaccount:ladder-system:ladder-scheduler"; cert.Subject.CommonName != want {
		t.Errorf("user = %s, want %s", cert.Subject.CommonName, want)
	}
	slices.Sort(cert.Subject.Organization)
	if want := []string{"system:serviceaccounts", "system:serviceaccounts:ladder-system"}; !slices.Equal(cert.Subject.Organization, want) {
		t.Errorf("groups = %v, want %v", cert.Subject.Organization, want)
	}
	if !config.Insecure && len(config.CAData) == 0 {
		t.Error("the server's authority is missing")
	}
}

func TestSchedulers(t *testing.T) {
	for _, s := range Schedulers() {
		if got, err := ParseScheduler(string(s)); err != nil || got != s {
			t.Errorf("ParseScheduler(%s) = %s, %v", s, got, err)
		}
	}
	if _, err := ParseScheduler("fast"); err == nil || !strings.Contains(err.Error(), "stock-configured") {
		t.Errorf("ParseScheduler(fast) = %v, want the choices", err)
	}
	if _, err := Up(t.Context(), Options{Scheduler: "fast"}); err == nil {
		t.Error("Up with an unknown scheduler succeeds")
	}
}

func TestProgramsFollowTheOptions(t *testing.T) {
	for scheduler, want := range map[Scheduler]string{
		"": LadderScheduler, SchedulerLadder: LadderScheduler,
		SchedulerStock: KubeScheduler, SchedulerStockConfigured: KubeScheduler,
	} {
		if got := Programs(Options{Scheduler: scheduler}); !slices.Contains(got, want) {
			t.Errorf("%q runs %v, want %s among them", scheduler, got, want)
		}
	}
	got := Programs(Options{Scheduler: SchedulerNone, WithoutController: true})
	if want := []string{Etcd, APIServer, ControllerManager, Kwok}; !slices.Equal(got, want) {
		t.Errorf("the smallest lab runs %v, want %v", got, want)
	}
}

func TestStockConfiguration(t *testing.T) {
	type config struct {
		PercentageOfNodesToScore *int `json:"percentageOfNodesToScore"`
		ClientConnection         struct{ Kubeconfig string }
		Profiles                 []struct {
			SchedulerName string
			Plugins       struct {
				MultiPoint struct {
					Enabled []struct {
						Name   string
						Weight int
					}
				}
			}
		}
	}
	read := func(s Scheduler) (c config) {
		content, err := stockConfig(s, "/path")
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.Unmarshal(content, &c); err != nil {
			t.Fatal(err)
		}
		if len(c.Profiles) != 2 || c.ClientConnection.Kubeconfig != "/path" {
			t.Fatalf("configuration of %s: %s", s, content)
		}
		return c
	}
	stock := read(SchedulerStock)
	if stock.PercentageOfNodesToScore != nil || stock.Profiles[0].Plugins.MultiPoint.Enabled != nil {
		t.Errorf("the stock scheduler is configured: %+v", stock)
	}
	configured := read(SchedulerStockConfigured)
	if p := configured.PercentageOfNodesToScore; p == nil || *p != 100 {
		t.Errorf("percentageOfNodesToScore = %v", p)
	}
	for _, profile := range configured.Profiles {
		if e := profile.Plugins.MultiPoint.Enabled; len(e) != 1 || e[0].Name != "DynamicResources" || e[0].Weight != 100 {
			t.Errorf("profile %s = %+v", profile.SchedulerName, e)
		}
	}
}

func TestHeartbeatsLeaveRoom(t *testing.T) {
	for _, nodes := range []int{0, 3, 100, 101, 5000} {
		lease, grace := heartbeats(nodes)
		// kwok renews at a quarter of the lease: several must be missed.
		if grace < lease/4*3 || grace <= lease/4 {
			t.Errorf("%d nodes: lease %v, lost after %v", nodes, lease, grace)
		}
	}
}

func TestTheEnvironmentIsBare(t *testing.T) {
	t.Setenv("HTTPS_PROXY", "http://proxy.example.test")
	t.Setenv("KUBECONFIG", "/home/somebody/.kube/config")
	t.Setenv("HOME", "/home/somebody")
	env := environment("/lab")
	for _, entry := range env {
		if strings.Contains(entry, "proxy") || strings.Contains(entry, "somebody") {
			t.Errorf("a component is given %s", entry)
		}
	}
	if !slices.Contains(env, "HOME=/lab") {
		t.Errorf("environment = %v", env)
	}
}

func TestRemoveAllBut(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"logs", "journal", "data", "pki"} {
		if err := os.MkdirAll(filepath.Join(dir, name, "sub"), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := removeAllBut(dir, "logs", "journal"); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 || entries[0].Name() != "journal" || entries[1].Name() != "logs" {
		t.Errorf("left: %v, %v", entries, err)
	}
	if err := removeAllBut(filepath.Join(dir, "none"), "logs"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("of nothing: %v", err)
	}
}

func TestTimeForLargeFleets(t *testing.T) {
	if small, large := populateWithin(3), populateWithin(1213); small < time.Minute || large < 4*small {
		t.Errorf("3 nodes get %v, 1213 nodes %v", small, large)
	}
}

// The gate is there only with somebody who opens it.
func TestGateOfQuotas(t *testing.T) {
	for name, tc := range map[string]struct {
		options Options
		want    bool
	}{
		"as it comes":            {Options{}, true},
		"with another scheduler": {Options{Scheduler: SchedulerStock}, true},
		"without the controller": {Options{WithoutController: true}, false},
		"without the gate":       {Options{WithoutQuotaGate: true}, false},
	} {
		t.Run(name, func(t *testing.T) {
			objects, err := admission(tc.options)
			if err != nil {
				t.Fatal(err)
			}
			found := map[string]int{}
			last := ""
			for _, o := range objects {
				if last = o.GetName(); last == "ladder-quota-gate" {
					found[o.GetKind()]++
				}
			}
			for _, kind := range []string{
				"MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding",
			} {
				if got := found[kind] == 1; got != tc.want {
					t.Errorf("%s ladder-quota-gate: %d, want it: %v", kind, found[kind], tc.want)
				}
			}
			// What shows that the policies are in force is written last.
			if last == "ladder-quota-gate" {
				t.Error("the gate is written last")
			}
		})
	}
}

// ladder-controller reads settings only where there are some.
func TestQuotaSettings(t *testing.T) {
	l := layout{dir: "lab", ports: map[string]int{LadderController: 1, portControllerMetrics: 2}}
	for settings, want := range map[string]bool{"": false, "notice: 1s": true} {
		args := ladderControllerSpec(l, Options{QuotaSettings: settings}).args
		if got := slices.Contains(args, "--quota-config="+l.data(quotaSettings)); got != want {
			t.Errorf("settings %q: the arguments are %q", settings, args)
		}
	}
}

func TestJournalsAreKept(t *testing.T) {
	l := layout{dir: "/lab", ports: map[string]int{}}
	for _, keep := range []bool{false, true} {
		args := ladderSchedulerSpec(l, Options{Scheduler: SchedulerLadder, KeepJournals: keep}).args
		if !slices.Contains(args, "--journal="+l.journal()) || slices.Contains(args, "--journal-keep=-1") != keep {
			t.Errorf("kept %t: %q", keep, args)
		}
	}
}

func TestOrderIsDrawn(t *testing.T) {
	names := func(seed uint64) []string { return shuffled([]string{"a", "b", "c", "d", "e", "f", "g", "h"}, seed) }
	if !slices.IsSorted(names(0)) || slices.IsSorted(names(1)) {
		t.Errorf("without a seed %q, with one %q", names(0), names(1))
	}
	if !slices.Equal(names(1), names(1)) || slices.Equal(names(1), names(2)) {
		t.Errorf("seed 1: %q and %q, seed 2: %q", names(1), names(1), names(2))
	}
	if all := names(2); !slices.Equal(slices.Sorted(slices.Values(all)), names(0)) {
		t.Errorf("something is lost: %q", all)
	}
}
