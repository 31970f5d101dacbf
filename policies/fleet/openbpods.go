package fleet

// This file makes Pods and policies from the Pod list of a public trace.

import (
	"crypto/sha256"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// OpenBStart is the time at which the trace's clock, which counts seconds from
// 0, is set to begin. The trace does not say when it was.
var OpenBStart = time.Date(2023, time.January, 1, 0, 0, 0, 0, time.UTC)

// OpenBNamespace is the namespace of the trace's Pods.
const OpenBNamespace = "default"

// anyTier is the tier of a Pod that takes any model.
const anyTier = "any"

// Workload is a list of Pods with the policies that they name.
type Workload struct {
	// Policies in order of name.
	Policies []*v1alpha1.AcceleratorPolicy
	// Pods in the order of the trace.
	Pods []*corev1.Pod
}

// OpenBPods makes a workload from the Pod list of Alibaba's trace of 2023
// (openb_pod_list_*.csv: name, cpu_milli, memory_mib, num_gpu, gpu_milli,
// gpu_spec, creation_time and others): the first limit Pods that ask for GPUs,
// all of them if limit is 0.
//
// A gpu_spec lists the models that a Pod may run on, joined by bars. Each
// different pair of gpu_spec and num_gpu becomes an AcceleratorPolicy: one tier
// for each alternative, in their order (one that is listed twice counts once),
// or the tier "any" if nothing is listed. The trace means a set by it; its
// order is made the order of preference here.
//
// A Pod that asks for a part of a GPU (gpu_milli below 1000) gets a whole
// device. When a Pod ended in the trace is not carried over: the Pods are all
// waiting, created when the trace says, counted from [OpenBStart].
func OpenBPods(r io.Reader, limit int) (*Workload, error) {
	w, err := convertPods(r, limit)
	if err != nil {
		return nil, fmt.Errorf("converting openb pods, %w", err)
	}
	return w, nil
}

// Objects are the policies, then the Pods.
func (w *Workload) Objects() []runtime.Object {
	objects := make([]runtime.Object, 0, len(w.Policies)+len(w.Pods))
	for _, policy := range w.Policies {
		objects = append(objects, policy)
	}
	for _, pod := range w.Pods {
		objects = append(objects, pod)
	}
	return objects
}

// WriteManifests prints the policies and then the Pods as YAML documents.
func (w *Workload) WriteManifests(out io.Writer) error {
	return WriteObjects(out, w.Objects()...)
}

func convertPods(r io.Reader, limit int) (*Workload, error) {
	if limit < 0 {
		return nil, fmt.Errorf("the limit must not be negative, is %d", limit)
	}
	pods, err := openTable(r, "name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec", "creation_time")
	if err != nil {
		return nil, err
	}
	w := &Workload{}
	policies := map[string]bool{}
	for row, err := range pods.rows() {
		if err != nil {
			return nil, err
		}
		gpus, err := row.number("num_gpu", 0, 32)
		if err != nil {
			return nil, err
		}
		if gpus == 0 {
			continue
		}
		policy, err := openBPolicy(row, int32(gpus))
		if err != nil {
			return nil, err
		}
		if !policies[policy.Name] {
			policies[policy.Name] = true
			w.Policies = append(w.Policies, policy)
		}
		pod, err := openBPod(row, policy.Name)
		if err != nil {
			return nil, err
		}
		w.Pods = append(w.Pods, pod)
		if len(w.Pods) == limit {
			break
		}
	}
	slices.SortFunc(w.Policies, func(a, b *v1alpha1.AcceleratorPolicy) int { return strings.Compare(a.Name, b.Name) })
	return w, nil
}

func openBPolicy(r row, gpus int32) (*v1alpha1.AcceleratorPolicy, error) {
	var tiers []v1alpha1.Tier
	var names []string
	if spec := r.text("gpu_spec"); spec != "" {
		for model := range strings.SplitSeq(spec, "|") {
			name := label(model)
			if name == "" {
				return nil, r.errorf("gpu_spec", "%q has an alternative without a name", spec)
			}
			if slices.Contains(names, name) {
				continue
			}
			names = append(names, name)
			tiers = append(tiers, v1alpha1.Tier{Name: name, Models: []string{model}})
		}
	} else {
		names = []string{anyTier}
		tiers = []v1alpha1.Tier{{Name: anyTier}}
	}
	policy := &v1alpha1.AcceleratorPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: "AcceleratorPolicy"},
		ObjectMeta: metav1.ObjectMeta{Name: policyName(names, gpus)},
		Spec: v1alpha1.AcceleratorPolicySpec{
			Driver: v1alpha1.DriverName,
			Count:  &gpus,
			Tiers:  tiers,
		},
	}
	policy.Default()
	if err := policy.Validate().ToAggregate(); err != nil {
		return nil, r.errorf("gpu_spec", "makes no policy, %w", err)
	}
	return policy, nil
}

// maxPolicyName leaves room for the number of a revision within a label's value.
const maxPolicyName = 50

// policyName says what the policy gives: openb-v100m16-v100m32-x4. One that is
// too long ends in a hash instead.
func policyName(tiers []string, gpus int32) string {
	name := fmt.Sprintf("openb-%s-x%d", strings.Join(tiers, "-"), gpus)
	if len(name) > maxPolicyName {
		sum := fmt.Sprintf("-%x", sha256.Sum256([]byte(name)))[:11]
		name = strings.TrimRight(name[:maxPolicyName-len(sum)], "-") + sum
	}
	return name
}

func openBPod(r row, policy string) (*corev1.Pod, error) {
	name := r.text("name")
	if messages := validation.IsDNS1123Subdomain(name); len(messages) > 0 {
		return nil, r.errorf("name", "%q: %s", name, messages[0])
	}
	cpu, err := r.number("cpu_milli", 0, maxMilli)
	if err != nil {
		return nil, err
	}
	memory, err := r.number("memory_mib", 0, maxMiB)
	if err != nil {
		return nil, err
	}
	if _, err := r.number("gpu_milli", 1, 1000); err != nil {
		return nil, err
	}
	created, err := r.number("creation_time", 0, 1<<32)
	if err != nil {
		return nil, err
	}
	return &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Name:              name,
			Namespace:         OpenBNamespace,
			UID:               types.UID(name),
			CreationTimestamp: metav1.NewTime(OpenBStart.Add(time.Duration(created) * time.Second)),
			Labels:            map[string]string{v1alpha1.LabelPolicy: policy},
		},
		Spec: corev1.PodSpec{
			SchedulerName: v1alpha1.SchedulerName,
			RestartPolicy: corev1.RestartPolicyNever,
			Containers: []corev1.Container{{
				Name:  "main",
				Image: "example.com/openb:1",
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
					corev1.ResourceCPU:    *resource.NewMilliQuantity(cpu, resource.DecimalSI),
					corev1.ResourceMemory: mib(memory),
				}},
			}},
		},
	}, nil
}
