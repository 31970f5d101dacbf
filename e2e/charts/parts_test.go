package charts_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/e2e/charts"
	"gpuladder.dev/ladder/e2e/cluster/apply"
	"gpuladder.dev/ladder/e2e/cluster/binaries"
	"gpuladder.dev/ladder/e2e/cluster/process"
)

const gpuNode = "gpu-node"

// part is a program of the chart that runs with the account, the roles and the
// flags that the chart gives it.
type part struct {
	log, metrics string
}

// parts starts the scheduler, the controller and the driver of the default
// installation once; they run until the package's tests end.
var started struct {
	sync.Mutex
	parts map[string]*part
	stop  []func()
}

// runningParts starts what the chart installs, as processes that use the rendered
// accounts, against the test's API server.
func runningParts(t *testing.T) map[string]*part {
	t.Helper()
	c, _ := server(t)
	started.Lock()
	defer started.Unlock()
	if started.parts != nil {
		return started.parts
	}
	for _, object := range render(t, "default") {
		switch object.GetKind() {
		case "CustomResourceDefinition", "Deployment", "DaemonSet", "Pod":
			continue // kinds are there; nobody would run workloads
		}
		if err := apply.Objects(t.Context(), c, object); err != nil {
			t.Fatal(err)
		}
	}
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: gpuNode, Labels: map[string]string{"gpuladder.dev/fake-tier": "h100"}}}
	if err := c.Create(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	node.Status.Capacity = corev1.ResourceList{"cpu": quantity("8"), "memory": quantity("32Gi"), "pods": quantity("110")}
	node.Status.Allocatable = node.Status.Capacity
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "Test"}}
	if err := c.Status().Update(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	// The API server marks every new node until its controller has looked.
	node.Spec.Taints = nil
	if err := c.Update(t.Context(), node); err != nil {
		t.Fatal(err)
	}

	dir, err := home()
	if err != nil {
		t.Fatal(err)
	}
	folder := func(name string) string {
		path := filepath.Join(dir, "node", name)
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
		return path
	}
	scheduler := account(t, "ladder-scheduler", nil)
	schedulerFile := schedulerConfig(t, folder("scheduler"), scheduler)
	ports := map[string]string{}
	for _, name := range []string{"scheduler", "controller", "controller-health", "driver"} {
		ports[name] = freePort(t)
	}
	started.parts = map[string]*part{
		"ladder-scheduler": run(t, binaries.LadderScheduler, dir, "https://"+ports["scheduler"], "/readyz", nil,
			"--config="+schedulerFile, "--secure-port="+port(ports["scheduler"]), "--bind-address=127.0.0.1",
			"--journal="+filepath.Join(folder("journal"), "journal.jsonl"),
			"--authentication-kubeconfig="+scheduler, "--authorization-kubeconfig="+scheduler),
		"ladder-controller": run(t, binaries.LadderController, dir, "http://"+ports["controller"], "/metrics", nil,
			"--kubeconfig="+account(t, "ladder-controller", nil), "--leader-election-namespace="+charts.Namespace,
			"--metrics-bind-address="+ports["controller"], "--health-probe-bind-address="+ports["controller-health"]),
		"ladder-driver": run(t, binaries.LadderFakeDriver, dir, "http://"+ports["driver"], "/metrics", nil,
			"node", "--node-name="+gpuNode, "--pod-uid=1", "--kubeconfig="+account(t, "ladder-driver", node),
			"--plugins-dir="+folder("plugins"), "--registrar-dir="+folder("registry"), "--cdi-dir="+folder("cdi"),
			"--metrics-address="+ports["driver"]),
	}
	return started.parts
}

// schedulerConfig writes the chart's configuration of the scheduler into a folder,
// with its kubeconfig and with other words in the place of some: the old, the new,
// and so on.
func schedulerConfig(t *testing.T, dir, credentials string, words ...string) string {
	t.Helper()
	config, _, err := unstructured.NestedString(find(t, render(t, "default"), "ConfigMap", "ladder-scheduler").Object, "data", "config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	words = append(words, "clientConnection:\n", "clientConnection:\n  kubeconfig: "+credentials+"\n")
	file := filepath.Join(dir, "config.yaml")
	if err := os.WriteFile(file, []byte(strings.NewReplacer(words...).Replace(config)), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func stopParts() {
	started.Lock()
	defer started.Unlock()
	for _, stop := range started.stop {
		stop()
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

func port(address string) string { return address[strings.LastIndex(address, ":")+1:] }

// run starts a program and waits until it answers at the path.
func run(t *testing.T, program, dir, url, path string, env []string, args ...string) *part {
	t.Helper()
	set, err := binaries.Ensure(t.Context(), os.Stderr, program)
	if err != nil {
		t.Fatal(err)
	}
	p := &part{log: filepath.Join(dir, program+".log"), metrics: url + "/metrics"}
	child, err := process.Start(process.Spec{Name: program, Path: set.Path(program), Args: args, Env: env, Dir: dir, Log: p.log})
	if err != nil {
		t.Fatal(err)
	}
	started.stop = append(started.stop, func() { child.Stop(context.Background(), 5*time.Second) })
	err = wait.PollUntilContextTimeout(t.Context(), 200*time.Millisecond, 90*time.Second, true, func(ctx context.Context) (bool, error) {
		select {
		case <-child.Done():
			return false, errors.New("it has ended")
		default:
		}
		_, err := read(ctx, url+path, "")
		return err == nil, nil
	})
	if err != nil {
		t.Fatalf("%s is not ready, %v:\n%s", program, err, process.Tail(p.log, 20))
	}
	return p
}

var unverified = &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}, Timeout: 5 * time.Second}

func read(ctx context.Context, url, token string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := unverified.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s answers %s: %s", url, response.Status, body)
	}
	return string(body), err
}

// bearerToken asks for a service account's token, bound to a node where one is given,
// as the token is that the kubelet mounts into a Pod.
func bearerToken(t *testing.T, name string, node *corev1.Node) string {
	t.Helper()
	_, config := server(t)
	clientset, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	request := &authenticationv1.TokenRequest{}
	if node != nil {
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{Kind: "Node", APIVersion: "v1", Name: node.Name, UID: node.UID}
	}
	answer, err := clientset.CoreV1().ServiceAccounts(charts.Namespace).CreateToken(t.Context(), name, request, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return answer.Status.Token
}

// account writes a kubeconfig for a service account of the chart.
func account(t *testing.T, name string, node *corev1.Node) string {
	t.Helper()
	return kubeconfigOf(t, name, &clientcmdapi.AuthInfo{Token: bearerToken(t, name, node)})
}

// kubeconfigOf writes a kubeconfig for a user.
func kubeconfigOf(t *testing.T, name string, user *clientcmdapi.AuthInfo) string {
	t.Helper()
	_, config := server(t)
	dir, err := home()
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, name+".kubeconfig")
	err = clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"c": {Server: config.Host, CertificateAuthorityData: config.CAData}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"u": user},
		Contexts:       map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}},
		CurrentContext: "x",
	}, file)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// What the chart grants is enough: a policy becomes ready, a Pod gets its
// device and its record, the driver publishes, and nobody was refused anything.
func TestPartsWorkWithTheirRoles(t *testing.T) {
	all := runningParts(t)
	c, _ := server(t)
	ctx := t.Context()
	eventually(t, "the driver's slices", func(ctx context.Context) error {
		var slices resourcev1.ResourceSliceList
		if err := c.List(ctx, &slices); err != nil {
			return err
		}
		for _, s := range slices.Items {
			if s.Spec.Driver == "gpu.gpuladder.dev" && ptr.Deref(s.Spec.NodeName, "") == gpuNode && len(s.Spec.Devices) > 0 {
				return nil
			}
		}
		return fmt.Errorf("there are %d slices, none with devices of %s", len(slices.Items), gpuNode)
	})
	policy := custom("AcceleratorPolicy", "", "roles")
	policy.Object["spec"] = map[string]any{"tiers": []any{map[string]any{"name": "h100", "models": []any{"H100"}}}}
	if err := c.Create(ctx, policy); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the policy to be ready", func(ctx context.Context) error {
		if err := c.Get(ctx, client.ObjectKeyFromObject(policy), policy); err != nil {
			return err
		}
		name, _, _ := unstructured.NestedString(policy.Object, "status", "templateName")
		if name == "" {
			return fmt.Errorf("its status is %v", policy.Object["status"])
		}
		return nil
	})
	defaultAccount(t, c)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "roles", Labels: map[string]string{"gpuladder.dev/policy": "roles"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example.com/train:1"}}},
	}
	eventually(t, "the Pod to be admitted", func(ctx context.Context) error { return c.Create(ctx, pod.DeepCopy()) })
	if err := c.Get(ctx, client.ObjectKeyFromObject(pod), pod); err != nil {
		t.Fatal(err)
	}
	makeClaim(t, c, pod)
	placed(t, c, pod)
	for name, p := range all {
		p.refusedNothing(t, name)
	}
	leases := []string{"ladder-scheduler", "ladder-controller"}
	for _, name := range leases {
		lease := &unstructured.Unstructured{}
		lease.SetAPIVersion("coordination.k8s.io/v1")
		lease.SetKind("Lease")
		if err := c.Get(ctx, client.ObjectKey{Namespace: charts.Namespace, Name: name}, lease); err != nil {
			t.Errorf("%s works without its lease: %v", name, err)
		}
	}
}

// Where ladder-scheduler runs under kube-scheduler's account, as a static Pod of
// the control plane, the chart without its own scheduler gives that account what
// it needs.
func TestSchedulerUnderAnotherAccount(t *testing.T) {
	const user = "system:kube-scheduler"
	runningParts(t)
	c, config := server(t)
	// Of the installation with that account only what is said of it.
	for _, object := range render(t, "nvidia") {
		if object.GetKind() != "ValidatingAdmissionPolicy" && object.GetName() != "ladder-extra-allocators" {
			continue
		}
		if err := apply.Objects(t.Context(), c, object); err != nil {
			t.Fatal(err)
		}
	}
	claim := &resourcev1.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", GenerateName: "static-"},
		Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{
			Name: "gpu", Exactly: &resourcev1.ExactDeviceRequest{
				DeviceClassName: "gpu.gpuladder.dev", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1,
			},
		}}}},
	}
	if err := c.Create(t.Context(), claim); err != nil {
		t.Fatal(err)
	}
	impersonating := rest.CopyConfig(config)
	impersonating.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:authenticated"}}
	them, err := client.New(impersonating, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	// The API server reads roles and admission policies by watching them.
	eventually(t, "the account to be known", func(ctx context.Context) error {
		record := custom("AllocationDecision", "default", "static")
		record.Object["spec"] = map[string]any{"pod": "static", "outcome": "Pending"}
		allocated := claim.DeepCopy()
		allocated.Status.Allocation = &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{
			Results: []resourcev1.DeviceRequestAllocationResult{{Request: "gpu", Driver: "gpu.gpuladder.dev", Pool: gpuNode, Device: "gpu-0"}},
		}}
		return errors.Join(them.Create(ctx, record, client.DryRunAll), them.Status().Update(ctx, allocated, client.DryRunAll))
	})

	dir, err := home()
	if err != nil {
		t.Fatal(err)
	}
	dir = filepath.Join(dir, "static")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	credentials := kubeconfigOf(t, "static", &clientcmdapi.AuthInfo{
		ClientCertificateData: config.CertData, ClientKeyData: config.KeyData, Impersonate: user, ImpersonateGroups: impersonating.Impersonate.Groups,
	})
	address := freePort(t)
	scheduler := run(t, binaries.LadderScheduler, dir, "https://"+address, "/readyz", nil,
		"--config="+schedulerConfig(t, dir, credentials, "leaderElect: true", "leaderElect: false", "schedulerName: ladder-scheduler", "schedulerName: default-scheduler"),
		"--secure-port="+port(address), "--bind-address=127.0.0.1",
		"--authentication-kubeconfig="+credentials, "--authorization-kubeconfig="+credentials)
	defaultAccount(t, c)
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", GenerateName: "static-"},
		Spec: corev1.PodSpec{
			ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &claim.Name}},
			Containers:     []corev1.Container{{Name: "main", Image: "example.com/train:1"}},
		},
	}
	if err := c.Create(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	placed(t, c, pod)
	scheduler.refusedNothing(t, "ladder-scheduler of "+user)
}

// defaultAccount makes the account of Pods that name none, which a controller would.
func defaultAccount(t *testing.T, c client.Client) {
	t.Helper()
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "default"}}
	if err := c.Create(t.Context(), account); client.IgnoreAlreadyExists(err) != nil {
		t.Fatal(err)
	}
}

// placed waits until a Pod of the namespace default is bound and a record says so.
func placed(t *testing.T, c client.Client, pod *corev1.Pod) {
	t.Helper()
	eventually(t, "the Pod to be bound and its decision recorded", func(ctx context.Context) error {
		if err := c.Get(ctx, client.ObjectKeyFromObject(pod), pod); err != nil {
			return err
		}
		if pod.Spec.NodeName != gpuNode {
			return fmt.Errorf("its node is %q, its conditions %v", pod.Spec.NodeName, pod.Status.Conditions)
		}
		records := &unstructured.UnstructuredList{}
		records.SetAPIVersion("gpuladder.dev/v1alpha1")
		records.SetKind("AllocationDecisionList")
		if err := c.List(ctx, records, client.InNamespace("default")); err != nil {
			return err
		}
		for _, r := range records.Items {
			outcome, _, _ := unstructured.NestedString(r.Object, "spec", "outcome")
			if name, _, _ := unstructured.NestedString(r.Object, "spec", "pod"); name == pod.Name && outcome == "Allocated" {
				return nil
			}
		}
		return fmt.Errorf("none of %d records says so", len(records.Items))
	})
}

var refusal = regexp.MustCompile(`(?i)forbidden|unauthorized|cannot (get|list|watch|create|update|patch|delete) resource`)

// refusedNothing looks through what the part has logged.
func (p *part) refusedNothing(t *testing.T, name string) {
	t.Helper()
	for line := range strings.SplitSeq(process.Tail(p.log, 1<<20), "\n") {
		if refusal.MatchString(line) {
			t.Errorf("%s was refused something: %s", name, line)
		}
	}
}

// makeClaim does what kube-controller-manager would: the Pod's claim, made from
// its template.
func makeClaim(t *testing.T, c client.Client, pod *corev1.Pod) {
	t.Helper()
	for _, ref := range pod.Spec.ResourceClaims {
		template := &resourcev1.ResourceClaimTemplate{}
		if err := c.Get(t.Context(), client.ObjectKey{Namespace: pod.Namespace, Name: *ref.ResourceClaimTemplateName}, template); err != nil {
			t.Fatal(err)
		}
		claim := &resourcev1.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: pod.Namespace, Name: pod.Name + "-" + ref.Name, Labels: template.Spec.Labels, Annotations: map[string]string{"resource.kubernetes.io/pod-claim-name": ref.Name},
				OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID, Controller: ptr.To(true)}},
			},
			Spec: template.Spec.Spec,
		}
		for k, v := range template.Spec.Annotations {
			claim.Annotations[k] = v
		}
		if err := c.Create(t.Context(), claim); err != nil {
			t.Fatal(err)
		}
		pod.Status.ResourceClaimStatuses = append(pod.Status.ResourceClaimStatuses, corev1.PodResourceClaimStatus{Name: ref.Name, ResourceClaimName: &claim.Name})
	}
	if err := c.Status().Update(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
}

// The scheduler shows its metrics to those who were given the role for it, and
// to nobody else.
func TestMetricsReader(t *testing.T) {
	all := runningParts(t)
	c, _ := server(t)
	role := find(t, render(t, "full"), "ClusterRole", "ladder-metrics-reader")
	reader := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: charts.Namespace, Name: "prometheus"}}
	if err := c.Create(t.Context(), reader); err != nil {
		t.Fatal(err)
	}
	bearer := bearerToken(t, "prometheus", nil)
	if _, err := read(t.Context(), all["ladder-scheduler"].metrics, bearer); err == nil || !strings.Contains(err.Error(), "403") {
		t.Errorf("without the role: %v, want 403", err)
	}
	binding := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": map[string]any{"name": "prometheus"},
		"roleRef":  map[string]any{"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role.GetName()},
		"subjects": []any{map[string]any{"kind": "ServiceAccount", "name": "prometheus", "namespace": charts.Namespace}},
	}}
	if err := apply.Objects(t.Context(), c, role, binding); err != nil {
		t.Fatal(err)
	}
	// A refusal is remembered for a while.
	eventually(t, "the metrics to be shown", func(ctx context.Context) error {
		body, err := read(ctx, all["ladder-scheduler"].metrics, bearer)
		if err == nil && !strings.Contains(body, "scheduler_pending_pods") {
			err = errors.New("scheduler_pending_pods is missing")
		}
		return err
	})
}

func custom(kind, namespace, name string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetAPIVersion("gpuladder.dev/v1alpha1")
	object.SetKind(kind)
	object.SetNamespace(namespace)
	object.SetName(name)
	return object
}

func eventually(t *testing.T, what string, try func(context.Context) error) {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), 200*time.Millisecond, 60*time.Second, true, func(ctx context.Context) (bool, error) {
		last = try(ctx)
		return last == nil, nil
	})
	if err == nil {
		return
	}
	logs := ""
	for name, p := range started.parts {
		logs += "\n" + name + ":\n" + process.Tail(p.log, 10)
	}
	t.Fatalf("waiting for %s: %v, last: %v%s", what, err, last, logs)
}
