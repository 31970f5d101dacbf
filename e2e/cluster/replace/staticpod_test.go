package replace

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"
)

// kubeadms is the manifest that kubeadm writes.
const kubeadms = `apiVersion: v1
kind: Pod
metadata:
  labels: {component: kube-scheduler, tier: control-plane}
  name: kube-scheduler
  namespace: kube-system
spec:
  containers:
  - command:
    - kube-scheduler
    - --authentication-kubeconfig=/etc/kubernetes/scheduler.conf
    - --authorization-kubeconfig=/etc/kubernetes/scheduler.conf
    - --bind-address=127.0.0.1
    - --kubeconfig=/etc/kubernetes/scheduler.conf
    - --leader-elect=true
    image: example.test/kube-scheduler:v1
    imagePullPolicy: IfNotPresent
    livenessProbe:
      httpGet: {host: 127.0.0.1, path: /livez, port: probe-port, scheme: HTTPS}
    name: kube-scheduler
    ports: [{containerPort: 10259, name: probe-port, protocol: TCP}]
    volumeMounts:
    - {mountPath: /etc/kubernetes/scheduler.conf, name: kubeconfig, readOnly: true}
  hostNetwork: true
  priorityClassName: system-node-critical
  volumes:
  - {hostPath: {path: /etc/kubernetes/scheduler.conf, type: FileOrCreate}, name: kubeconfig}
`

func TestEditedManifest(t *testing.T) {
	edited, err := edit([]byte(kubeadms), "ladder/ladder-scheduler:dev")
	if err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{}
	if err := yaml.UnmarshalStrict(edited, pod); err != nil {
		t.Fatal(err)
	}
	c := pod.Spec.Containers[0]
	want := []string{
		"/ladder-scheduler", "--config=/etc/kubernetes/ladder-scheduler.yaml",
		"--authentication-kubeconfig=/etc/kubernetes/scheduler.conf", "--authorization-kubeconfig=/etc/kubernetes/scheduler.conf",
		"--bind-address=127.0.0.1",
	}
	if !slices.Equal(c.Command, want) || c.Image != "ladder/ladder-scheduler:dev" {
		t.Errorf("%s runs %q, want %q", c.Image, c.Command, want)
	}
	if pod.Name != "kube-scheduler" || c.Name != "kube-scheduler" || c.LivenessProbe == nil || !pod.Spec.HostNetwork || len(c.Ports) != 1 {
		t.Errorf("what should stay has changed: %+v", pod)
	}
	if s := c.SecurityContext; s == nil || s.RunAsUser == nil || *s.RunAsUser != 0 || *s.RunAsGroup != 0 {
		t.Errorf("got security context %+v, want root, whose the mounted files are", s)
	}
	mounts := map[string]string{}
	for _, m := range c.VolumeMounts {
		mounts[m.MountPath] = m.Name
	}
	if len(mounts) != 2 || mounts[configFile] != configVolume || len(pod.Spec.Volumes) != 2 || pod.Spec.Volumes[1].HostPath.Path != configFile {
		t.Errorf("mounts %v, volumes %+v", mounts, pod.Spec.Volumes)
	}
}

func TestEditingAgainChangesTheImageOnly(t *testing.T) {
	once, err := edit([]byte(kubeadms), "a")
	if err != nil {
		t.Fatal(err)
	}
	twice, err := edit(once, "b")
	if err != nil || string(twice) != strings.Replace(string(once), "image: a\n", "image: b\n", 1) {
		t.Errorf("edited again, %v:\n%s\nonce:\n%s", err, twice, once)
	}
}

func TestManifestsThatAreNotUnderstood(t *testing.T) {
	for _, manifest := range []string{"", "kind: Pod", strings.Replace(kubeadms, "- command:", "- comand:", 1), "[", strings.Replace(kubeadms, "  hostNetwork", "  - {name: second}\n  hostNetwork", 1)} {
		if edited, err := edit([]byte(manifest), "a"); err == nil {
			t.Errorf("edit(%q) = %s", manifest, edited)
		}
	}
}
