package replace

// The static Pod of a control plane that kubeadm made.

import (
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"
)

// Files on the control plane's node.
const (
	manifestFile   = "/etc/kubernetes/manifests/kube-scheduler.yaml"
	configFile     = "/etc/kubernetes/ladder-scheduler.yaml"
	kubeconfigFile = "/etc/kubernetes/scheduler.conf"
)

// configVolume is the name of the volume with the configuration.
const configVolume = "ladder-config"

// edit returns the manifest of kube-scheduler's static Pod with ladder-scheduler
// in it. Everything else stays as it is: the Pod's name, its port and probes,
// and the account.
func edit(manifest []byte, image string) ([]byte, error) {
	pod := &corev1.Pod{}
	if err := yaml.UnmarshalStrict(manifest, pod); err != nil {
		return nil, fmt.Errorf("reading the manifest of kube-scheduler, %w", err)
	}
	if len(pod.Spec.Containers) != 1 || len(pod.Spec.Containers[0].Command) == 0 {
		return nil, errors.New("reading the manifest of kube-scheduler, one container with a command is expected")
	}
	c := &pod.Spec.Containers[0]
	c.Image, c.ImagePullPolicy = image, corev1.PullIfNotPresent
	command := []string{"/ladder-scheduler", "--config=" + configFile}
	for _, arg := range c.Command[1:] {
		name, _, _ := strings.Cut(arg, "=")
		switch name {
		case "--kubeconfig", "--config", "--leader-elect":
			// The configuration says it.
		default:
			command = append(command, arg)
		}
	}
	c.Command = command
	// The files of the control plane are root's; our image is of another user.
	if c.SecurityContext == nil {
		c.SecurityContext = &corev1.SecurityContext{}
	}
	c.SecurityContext.RunAsUser, c.SecurityContext.RunAsGroup = ptr.To[int64](0), ptr.To[int64](0)
	file := corev1.HostPathFile
	for _, v := range pod.Spec.Volumes {
		if v.Name == configVolume {
			return yaml.Marshal(pod)
		}
	}
	pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{
		Name: configVolume, VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: configFile, Type: &file}},
	})
	c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: configVolume, MountPath: configFile, ReadOnly: true})
	return yaml.Marshal(pod)
}
