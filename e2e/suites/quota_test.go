//go:build e2e

package suites

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/e2e/cluster/binaries"
	"gpuladder.dev/ladder/e2e/invariants/watchlog"
	"gpuladder.dev/ladder/e2e/workload"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/fair"
)

// What the suites about tenants look at: gates, the status of TenantQuotas,
// notices, and what claims held in between.

// Names of testdata/tenants.yaml.
const (
	tenantA = "e2e-tenant-a"
	tenantB = "e2e-tenant-b"

	tenantPolicy = "e2e-tenants"
	onlyH100     = "e2e-tenants-h100"
	onlyA100     = "e2e-tenants-a100"
)

// tenants makes two tenants with a namespace each; the suite's own belongs to
// nobody. It returns when their Pods are held at their gate.
func (s *scene) tenants(ctx context.Context, t *testing.T) (a, b *scene) {
	t.Helper()
	a, b = s.beside(ctx, t, "a"), s.beside(ctx, t, "b")
	s.atEnd(func(ctx context.Context) error {
		return s.log.Await(ctx, within.cleanup, "the TenantQuotas to be gone", func() (bool, string) {
			left := s.quota(tenantA) != nil || s.quota(tenantB) != nil
			return !left, "one is left"
		})
	})
	s.apply(ctx, t, "tenants.yaml", "$A", a.ns, "$B", b.ns)
	// Before the quotas go, so that no gate is opened that was to stay shut.
	s.atEnd(func(ctx context.Context) error { return errors.Join(a.deleteAll(ctx), b.deleteAll(ctx)) })
	for _, one := range []struct {
		name string
		*scene
	}{{tenantA, a}, {tenantB, b}} {
		one.policiesReady(ctx, t, tenantPolicy, onlyH100, onlyA100)
		s.counts(ctx, t, one.name, "that it is held", func(q *v1alpha1.TenantQuotaStatus) bool {
			return meta.IsStatusConditionTrue(q.Conditions, v1alpha1.ConditionReady)
		})
		one.gateIs(ctx, t, true)
	}
	s.gateIs(ctx, t, false)
	return a, b
}

// gated says whether a Pod waits for its tenant's turn.
func gated(pod *corev1.Pod) bool {
	return slices.Contains(pod.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: v1alpha1.GateQuota})
}

// gateIs waits until admission puts Pods of the namespace at the gate, or does
// not: it learns of quotas by watching them.
func (s *scene) gateIs(ctx context.Context, t *testing.T, want bool) {
	t.Helper()
	err := workload.WaitFor(ctx, within.admission, fmt.Sprintf("new Pods of %s to be at the gate: %t", s.ns, want), func(ctx context.Context) (bool, string, error) {
		try := s.pod("try", tenantPolicy)
		if err := s.client.Create(ctx, try, client.DryRunAll); err != nil {
			return again(err)
		}
		return gated(try) == want, fmt.Sprintf("their gates are %v", try.Spec.SchedulingGates), nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// enter creates a Pod, which must be at the gate at once.
func (s *scene) enter(ctx context.Context, t *testing.T, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	s.create(ctx, t, pod)
	if !gated(pod) {
		t.Errorf("Pod %s was let in without the gate: %v", pod.Name, pod.Spec.SchedulingGates)
	}
	return pod
}

// passed checks that the controller has opened a Pod's gate, and said so.
func (s *scene) passed(ctx context.Context, t *testing.T, pod *corev1.Pod) {
	t.Helper()
	if gated(pod) {
		t.Errorf("Pod %s runs and is at the gate", pod.Name)
	}
	s.eventAbout(ctx, t, pod, "QuotaGateOpened")
}

// eventAbout waits for an Event of ladder-controller about a Pod.
func (s *scene) eventAbout(ctx context.Context, t *testing.T, pod *corev1.Pod, reason string) {
	t.Helper()
	err := workload.WaitFor(ctx, within.published, fmt.Sprintf("an Event %s about Pod %s", reason, pod.Name), func(ctx context.Context) (bool, string, error) {
		list, err := s.kube.EventsV1().Events(pod.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "reason=" + reason})
		if err != nil {
			return again(err)
		}
		for _, e := range list.Items {
			if e.Regarding.UID == pod.UID {
				return e.ReportingController == "ladder-controller", "it is of " + e.ReportingController, nil
			}
		}
		return false, fmt.Sprintf("%d are about other Pods", len(list.Items)), nil
	})
	if err != nil {
		t.Error(err)
	}
}

// quota is a TenantQuota as the watch log knows it, or nil.
func (s *scene) quota(name string) *v1alpha1.TenantQuota {
	return watchlog.Get[*v1alpha1.TenantQuota](s.log, client.ObjectKey{Name: name})
}

// counts waits until the status of a TenantQuota says something.
func (s *scene) counts(ctx context.Context, t *testing.T, tenant, what string, says func(*v1alpha1.TenantQuotaStatus) bool) {
	t.Helper()
	s.await(ctx, t, within.counted, "TenantQuota "+tenant+" to say "+what, func() (bool, string) {
		q := s.quota(tenant)
		if q == nil {
			return false, "it is not there"
		}
		st := &q.Status
		return st.ObservedGeneration == q.Generation && says(st),
			fmt.Sprintf("models %+v, %d wait, next %+v, conditions %+v", st.Models, st.Waiting, st.Next, st.Conditions)
	})
}

// usage is what a status says of a model.
func usage(st *v1alpha1.TenantQuotaStatus, model string) v1alpha1.ModelUsage {
	for _, m := range st.Models {
		if m.Model == model {
			return m
		}
	}
	return v1alpha1.ModelUsage{Model: model}
}

// uses waits until a tenant is said to have so many devices of a model, to be
// charged so many, and to have borrowed so many of these.
func (s *scene) uses(ctx context.Context, t *testing.T, tenant, model string, used, charged, borrowed int32) {
	t.Helper()
	what := fmt.Sprintf("%d %s used, %d charged, %d borrowed", used, model, charged, borrowed)
	s.counts(ctx, t, tenant, what, func(st *v1alpha1.TenantQuotaStatus) bool {
		u := usage(st, model)
		return u.Used == used && u.Charged == charged && u.Borrowed == borrowed
	})
}

// place is a Pod in its tenant's line, and why it waits.
type place struct {
	pod    *corev1.Pod
	reason fair.Reason
}

// line waits until exactly these Pods of a tenant wait, in this order.
func (s *scene) line(ctx context.Context, t *testing.T, tenant string, want ...place) {
	t.Helper()
	what := ""
	for i, p := range want {
		what += fmt.Sprintf(" %d. %s %s", i+1, p.pod.Name, p.reason)
	}
	s.counts(ctx, t, tenant, "who waits:"+what, func(st *v1alpha1.TenantQuotaStatus) bool {
		if int(st.Waiting) != len(want) || len(st.Next) != len(want) {
			return false
		}
		for i, p := range want {
			is := st.Next[i]
			if int(is.Position) != i+1 || is.Namespace != p.pod.Namespace || is.Name != p.pod.Name || is.Reason != string(p.reason) {
				return false
			}
		}
		return true
	})
	for _, p := range want {
		if now := watchlog.Get[*corev1.Pod](s.log, client.ObjectKeyFromObject(p.pod)); now == nil || !gated(now) || now.Spec.NodeName != "" {
			t.Errorf("Pod %s does not wait at its gate: %s", p.pod.Name, describe(now))
		}
	}
}

// explanation is what `ladder quota explain -o json` prints.
type explanation struct {
	Reason fair.Reason
	Ahead  int
	Ways   []struct {
		Model  string
		Reason fair.Reason
	}
}

// explained is what `ladder quota explain` says of a Pod, given the cluster's
// objects as kubectl would give them.
func (s *scene) explained(ctx context.Context, t *testing.T, pod *corev1.Pod) explanation {
	t.Helper()
	if s.commands == "" {
		programs, err := binaries.Ensure(ctx, os.Stderr, binaries.Ladder)
		if err != nil {
			t.Fatal(err)
		}
		s.commands = programs.Path(binaries.Ladder)
	}
	objects, err := s.quotaObjects(ctx)
	if err != nil {
		t.Fatal(err)
	}
	x := exec.CommandContext(ctx, s.commands, "quota", "explain", pod.Name, "-n", pod.Namespace, "-f", "-", "-o", "json")
	var stderr bytes.Buffer
	x.Stdin, x.Stderr = bytes.NewReader(objects), &stderr
	out, err := x.Output()
	if err != nil {
		t.Fatalf("ladder quota explain %s, %v: %s", pod.Name, err, stderr.String())
	}
	var said explanation
	if err := json.Unmarshal(out, &said); err != nil {
		t.Fatalf("ladder quota explain %s, %v in %s", pod.Name, err, out)
	}
	return said
}

// quotaObjects are the objects that count for quotas, as documents.
func (s *scene) quotaObjects(ctx context.Context) ([]byte, error) {
	var documents bytes.Buffer
	for _, kind := range []schema.GroupVersionKind{
		corev1.SchemeGroupVersion.WithKind("NodeList"), corev1.SchemeGroupVersion.WithKind("PodList"),
		resourcev1.SchemeGroupVersion.WithKind("ResourceSliceList"), resourcev1.SchemeGroupVersion.WithKind("ResourceClaimList"),
		resourcev1.SchemeGroupVersion.WithKind("DeviceTaintRuleList"), v1alpha1.GroupVersion.WithKind("AcceleratorPolicyList"),
		v1alpha1.GroupVersion.WithKind("PolicyRevisionList"), v1alpha1.GroupVersion.WithKind("TenantQuotaList"),
	} {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(kind)
		if err := s.client.List(ctx, list); err != nil {
			return nil, fmt.Errorf("listing what counts for quotas, %w", err)
		}
		raw, err := list.MarshalJSON()
		if err != nil {
			return nil, fmt.Errorf("writing a %s, %w", kind.Kind, err)
		}
		documents.WriteString("---\n")
		documents.Write(raw)
	}
	return documents.Bytes(), nil
}

// noticed waits until one of the namespace's Pods is told that its devices are
// taken back for another Pod, and returns it and when they will be.
func (s *scene) noticed(ctx context.Context, t *testing.T, servant *corev1.Pod) (*corev1.Pod, time.Time) {
	t.Helper()
	var told []*corev1.Pod
	s.await(ctx, t, within.decided, "a Pod of "+s.ns+" to have notice", func() (bool, string) {
		told = slices.DeleteFunc(watchlog.List[*corev1.Pod](s.log, s.ns), func(p *corev1.Pod) bool {
			return p.Annotations[v1alpha1.AnnotationReclaimFor] != string(servant.UID)
		})
		return len(told) > 0, "none has"
	})
	if len(told) > 1 {
		t.Errorf("%d Pods have notice for one device", len(told))
	}
	deadline, err := time.Parse(time.RFC3339Nano, told[0].Annotations[v1alpha1.AnnotationReclaimDeadline])
	if err != nil {
		t.Fatalf("the notice of Pod %s, %v", told[0].Name, err)
	}
	s.eventAbout(ctx, t, told[0], "ReclaimNotice")
	return told[0], deadline
}

// evicted waits until a Pod that had notice is gone, and checks that it was
// evicted by the Eviction API and not before its time.
func (s *scene) evicted(ctx context.Context, t *testing.T, pod *corev1.Pod, deadline time.Time) {
	t.Helper()
	s.await(ctx, t, max(time.Until(deadline), 0)+within.gone, "Pod "+pod.Name+" to be evicted", func() (bool, string) {
		now := s.current(pod.Name)
		return now == nil || now.UID != pod.UID, describe(now)
	})
	at, reason := s.ended(pod)
	if at.Before(deadline) {
		t.Errorf("Pod %s was evicted at %s, its notice ended at %s", pod.Name, at, deadline)
	}
	if reason != "EvictionByEvictionAPI" {
		t.Errorf("Pod %s was not evicted by the Eviction API: its condition %s says %q", pod.Name, corev1.DisruptionTarget, reason)
	}
	s.eventAbout(ctx, t, pod, "Reclaimed")
}

// span is the least and the most devices of a model that the namespace's claims
// had at any version since a point of the history.
func (s *scene) span(model string, since int) (least, most int) {
	models, held, total := s.models(), map[types.UID]int{}, 0
	least = math.MaxInt
	look := func() { least, most = min(least, total), max(most, total) }
	for i, e := range s.log.History() {
		if i == since {
			look()
		}
		if e.Claim == nil || e.Claim.Namespace != s.ns {
			continue
		}
		n := 0
		if allocation := e.Claim.Status.Allocation; allocation != nil && e.Type != watch.Deleted {
			for _, r := range allocation.Devices.Results {
				if models[r.Pool+"/"+r.Device] == model {
					n++
				}
			}
		}
		total += n - held[e.Claim.UID]
		held[e.Claim.UID] = n
		if i >= since {
			look()
		}
	}
	look()
	return least, most
}

// upTo checks that the namespace's claims had as many devices of a model as its
// tenant may have, and at no version more.
func (s *scene) upTo(t *testing.T, model string, limit int) {
	t.Helper()
	if _, most := s.span(model, s.begun); most != limit {
		t.Errorf("%s had %d %s at the most, want its tenant's limit of %d", s.ns, most, model, limit)
	}
}
