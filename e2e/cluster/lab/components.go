package lab

// The parts of a lab: which program each is, its arguments, and how it shows
// that it is ready. Ports and files are fixed when the lab is planned, so that
// a part that is restarted is found where it was.

import (
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"gpuladder.dev/ladder/e2e/cluster/binaries"
)

// Names of the parts.
const (
	Etcd              = binaries.Etcd
	APIServer         = binaries.APIServer
	ControllerManager = binaries.ControllerManager
	KubeScheduler     = binaries.Scheduler
	Kwok              = binaries.Kwok
	LadderScheduler   = binaries.LadderScheduler
	LadderController  = binaries.LadderController
)

const (
	serviceCIDR = "10.96.0.0/16"
	// podCIDR is what kwok gives Pods addresses from; nothing is ever sent there.
	podCIDR = "10.128.0.1/9"
)

// serviceIP is the first address of serviceCIDR, the API server's own Service.
var serviceIP = net.IPv4(10, 96, 0, 1)

// stopGrace is how long a part may take to end before it is killed.
const stopGrace = 5 * time.Second

// spec is one part as it is planned.
type spec struct {
	name string
	args []string
	// ready is the URL that answers 200 once the part works.
	ready string
}

// layout are the files and ports of one lab.
type layout struct {
	dir   string
	ports map[string]int
}

func (l layout) pki(name string) string { return filepath.Join(l.dir, "pki", name) }
func (l layout) data(name string) string {
	return filepath.Join(l.dir, "data", name)
}
func (l layout) logs() string             { return filepath.Join(l.dir, "logs") }
func (l layout) log(part string) string   { return filepath.Join(l.logs(), part+".log") }
func (l layout) kubeconfig(u user) string { return filepath.Join(l.dir, "kubeconfig", u.file+".yaml") }

func (l layout) journal() string         { return filepath.Join(l.dir, "journal", "journal.jsonl") }
func (l layout) url(part string) string  { return "https://" + loopback(l.ports[part]) }
func (l layout) port(part string) string { return strconv.Itoa(l.ports[part]) }
func (l layout) server() string          { return l.url(APIServer) }
func (l layout) httpReady(part string) string {
	return "http://" + loopback(l.ports[part]) + "/readyz"
}

// Names under which second ports are reserved.
const (
	portEtcdPeer          = "etcd-peer"
	portControllerMetrics = "ladder-controller-metrics"
)

// portNames lists what a lab with these options needs ports for.
func portNames(o Options) []string {
	names := []string{Etcd, portEtcdPeer, APIServer, ControllerManager, Kwok}
	switch o.Scheduler {
	case SchedulerLadder, SchedulerLadderDefault:
		names = append(names, LadderScheduler)
	case SchedulerStock, SchedulerStockConfigured:
		names = append(names, KubeScheduler)
	case SchedulerNone:
	}
	if !o.WithoutController {
		names = append(names, LadderController, portControllerMetrics)
	}
	return names
}

func etcdSpec(l layout) spec {
	client, peer := l.url(Etcd), "https://"+loopback(l.ports[portEtcdPeer])
	return spec{name: Etcd, ready: client + "/readyz", args: []string{
		"--name=lab", "--data-dir=" + l.data("etcd"), "--log-level=warn",
		// A lab does not outlive its machine, so nothing has to reach the disk.
		"--unsafe-no-fsync",
		"--listen-client-urls=" + client, "--advertise-client-urls=" + client,
		"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=lab=" + peer,
		"--cert-file=" + l.pki(fileEtcdServing+".crt"), "--key-file=" + l.pki(fileEtcdServing+".key"),
		"--trusted-ca-file=" + l.pki(fileEtcdCA), "--client-cert-auth",
		"--peer-cert-file=" + l.pki(fileEtcdServing+".crt"), "--peer-key-file=" + l.pki(fileEtcdServing+".key"),
		"--peer-trusted-ca-file=" + l.pki(fileEtcdCA), "--peer-client-cert-auth",
	}}
}

func apiServerSpec(l layout) spec {
	return spec{name: APIServer, ready: l.server() + "/readyz", args: []string{
		"--etcd-servers=" + l.url(Etcd), "--etcd-cafile=" + l.pki(fileEtcdCA),
		"--etcd-certfile=" + l.pki(fileEtcdClient+".crt"), "--etcd-keyfile=" + l.pki(fileEtcdClient+".key"),
		"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--secure-port=" + l.port(APIServer),
		// The Service "kubernetes" can't point to a loopback address.
		"--endpoint-reconciler-type=none",
		"--tls-cert-file=" + l.pki(fileServing+".crt"), "--tls-private-key-file=" + l.pki(fileServing+".key"),
		"--client-ca-file=" + l.pki(fileCA),
		"--requestheader-client-ca-file=" + l.pki(fileFrontProxyCA), "--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--service-account-issuer=https://kubernetes.default.svc", "--service-cluster-ip-range=" + serviceCIDR,
		"--service-account-key-file=" + l.pki(fileServiceAccount+".pub"),
		"--service-account-signing-key-file=" + l.pki(fileServiceAccount+".key"),
		"--authorization-mode=RBAC", "--allow-privileged=true",
	}}
}

// controllers are those of kube-controller-manager that have something to do
// where there are no networks, volumes and kubelets.
var controllers = []string{
	"clusterrole-aggregation-controller", "cronjob-controller", "daemonset-controller", "deployment-controller",
	"device-taint-eviction-controller", "disruption-controller", "garbage-collector-controller", "job-controller",
	"namespace-controller", "node-lifecycle-controller", "pod-garbage-collector-controller", "replicaset-controller",
	"resourceclaim-controller", "resourcequota-controller", "root-ca-certificate-publisher-controller",
	"serviceaccount-controller", "serviceaccount-token-controller", "statefulset-controller",
	"taint-eviction-controller", "ttl-after-finished-controller", "validatingadmissionpolicy-status-controller",
}

func controllerManagerSpec(l layout, grace time.Duration) spec {
	kubeconfig := l.kubeconfig(userControllerManager)
	return spec{name: ControllerManager, ready: l.url(ControllerManager) + "/healthz", args: append([]string{
		"--kubeconfig=" + kubeconfig,
		"--controllers=" + strings.Join(controllers, ","),
		"--root-ca-file=" + l.pki(fileCA),
		"--service-account-private-key-file=" + l.pki(fileServiceAccount+".key"),
		"--use-service-account-credentials=true",
		"--node-monitor-grace-period=" + grace.String(),
		"--kube-api-qps=300", "--kube-api-burst=600", "--profiling=false",
	}, servingArgs(l, ControllerManager, kubeconfig)...)}
}

// servingArgs are the flags that every Kubernetes component has for its port.
// The kubeconfig lets it ask the API server who reads its metrics.
func servingArgs(l layout, part, kubeconfig string) []string {
	return []string{
		"--leader-elect=false", "--bind-address=127.0.0.1", "--secure-port=" + l.port(part),
		"--tls-cert-file=" + l.pki(fileServing+".crt"), "--tls-private-key-file=" + l.pki(fileServing+".key"),
		"--authentication-kubeconfig=" + kubeconfig, "--authorization-kubeconfig=" + kubeconfig,
	}
}

func kwokSpec(l layout, lease time.Duration) spec {
	return spec{name: Kwok, ready: l.httpReady(Kwok), args: []string{
		"--kubeconfig=" + l.kubeconfig(userKwok), "--config=" + l.data("kwok.yaml"),
		"--manage-all-nodes", "--node-ip=127.0.0.1", "--cidr=" + podCIDR,
		"--node-lease-duration-seconds=" + strconv.Itoa(int(lease.Seconds())),
		"--server-address=" + loopback(l.ports[Kwok]),
	}}
}

func ladderSchedulerSpec(l layout, o Options) spec {
	kubeconfig := l.kubeconfig(userLadderScheduler)
	from := "--kubeconfig=" + kubeconfig
	if o.Scheduler == SchedulerLadderDefault {
		from = "--config=" + l.data("ladder-scheduler.yaml")
	}
	args := []string{from, "--journal=" + l.journal()}
	if o.KeepJournals {
		args = append(args, "--journal-keep=-1")
	}
	return spec{name: LadderScheduler, ready: l.url(LadderScheduler) + "/readyz", args: append(args, servingArgs(l, LadderScheduler, kubeconfig)...)}
}

func kubeSchedulerSpec(l layout) spec {
	kubeconfig := l.kubeconfig(userScheduler)
	return spec{name: KubeScheduler, ready: l.url(KubeScheduler) + "/readyz", args: append([]string{
		"--config=" + l.data("kube-scheduler.yaml"), "--profiling=false",
	}, servingArgs(l, KubeScheduler, kubeconfig)...)}
}

func ladderControllerSpec(l layout, o Options) spec {
	s := spec{name: LadderController, ready: l.httpReady(LadderController), args: []string{
		"--kubeconfig=" + l.kubeconfig(userLadderController), "--leader-elect=false",
		"--metrics-bind-address=" + loopback(l.ports[portControllerMetrics]),
		"--health-probe-bind-address=" + loopback(l.ports[LadderController]),
	}}
	if o.QuotaSettings != "" {
		s.args = append(s.args, "--quota-config="+l.data(quotaSettings))
	}
	return s
}

// quotaSettings is the name of the file of Options.QuotaSettings.
const quotaSettings = "quota.yaml"

// heartbeats returns how long a node's lease lasts and after which time without
// one a node counts as lost. kwok renews at a quarter of the lease; on large
// fleets the defaults of kubelets would keep a small machine busy.
func heartbeats(nodes int) (lease, grace time.Duration) {
	lease, grace = 40*time.Second, 50*time.Second
	if nodes > 100 {
		lease, grace = 240*time.Second, 300*time.Second
	}
	return lease, grace
}
