package tenants

import (
	"context"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/e2e/invariants/watchlog"
	"gpuladder.dev/ladder/e2e/workload"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// writers is how many requests are made at once.
const writers = 12

// each does something for 0 to n-1, several at once.
func each(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	for i := range n {
		group.Go(func() error { return do(ctx, i) })
	}
	return group.Wait()
}

// build makes tenants, under whose quotas nothing starts yet, and policies, and
// returns when every Pod would wait at its gate.
func (r *run) build(ctx context.Context) error {
	for _, p := range policies() {
		if err := create(ctx, r.Client, p); err != nil {
			return fmt.Errorf("creating policy %s, %w", p.Name, err)
		}
	}
	err := each(ctx, r.Tenants, func(ctx context.Context, i int) error {
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: tenant(i)}}
		for _, o := range []client.Object{ns, closed(r.quota(i))} {
			if err := create(ctx, r.Client, o); err != nil {
				return fmt.Errorf("creating tenant %s, %w", tenant(i), err)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return each(ctx, r.Tenants, func(ctx context.Context, i int) error {
		for _, p := range policies() {
			err := workload.WaitFor(ctx, patience, "the gate of "+tenant(i), func(ctx context.Context) (bool, string, error) {
				pod := workload.Pod(tenant(i), "probe", p.Name)
				answer := "no gate is put"
				if err := r.Client.Create(ctx, pod, client.DryRunAll); err != nil {
					answer = err.Error() // asked again
				}
				return gated(pod), answer, nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	})
}

// setQuotas gives each tenant the quota that is made of its usual one.
func (r *run) setQuotas(ctx context.Context, from func(*v1alpha1.TenantQuota) *v1alpha1.TenantQuota) error {
	return each(ctx, r.Tenants, func(ctx context.Context, i int) error { return r.setQuota(ctx, from(r.quota(i))) })
}

func (r *run) setQuota(ctx context.Context, q *v1alpha1.TenantQuota) error {
	bare := &v1alpha1.TenantQuota{ObjectMeta: metav1.ObjectMeta{Name: q.Name}}
	if err := try(ctx, func(ctx context.Context) error { return r.Client.Patch(ctx, q.DeepCopy(), client.MergeFrom(bare)) }); err != nil {
		return fmt.Errorf("changing the quota of %s, %w", q.Name, err)
	}
	return nil
}

func usual(q *v1alpha1.TenantQuota) *v1alpha1.TenantQuota { return q }

// bring makes n Pods that are measured, of all tenants in turn.
func (r *run) bring(ctx context.Context, prefix string, n int) error {
	return each(ctx, n, func(ctx context.Context, i int) error {
		name := fmt.Sprintf("%s-%04d", prefix, i)
		if err := create(ctx, r.Client, workload.Pod(tenant(i%r.Tenants), name, bestFirst)); err != nil {
			return fmt.Errorf("creating Pod %s, %w", name, err)
		}
		return nil
	})
}

func (r *run) remove(ctx context.Context, key client.ObjectKey) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}}
	err := try(ctx, func(ctx context.Context) error {
		return client.IgnoreNotFound(r.Client.Delete(ctx, pod, client.GracePeriodSeconds(0)))
	})
	if err != nil {
		return fmt.Errorf("deleting Pod %s, %w", key, err)
	}
	return nil
}

// clear deletes all Pods and waits until all devices are free.
func (r *run) clear(ctx context.Context) error {
	err := each(ctx, r.Tenants, func(ctx context.Context, i int) error {
		return try(ctx, func(ctx context.Context) error {
			return r.Client.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace(tenant(i)), client.GracePeriodSeconds(0))
		})
	})
	if err != nil {
		return fmt.Errorf("deleting all Pods, %w", err)
	}
	return r.await(ctx, "Pods to be gone and devices to be free", func() (bool, string) {
		left := len(r.live) + len(r.holds)
		return left == 0, fmt.Sprintf("%d Pods are left, and %d have devices", len(r.live), len(r.holds))
	})
}

// waiting adds up what the quotas say of Pods at their gate.
func (r *run) waiting() int {
	n := 0
	for _, q := range watchlog.List[*v1alpha1.TenantQuota](r.log, "") {
		n += int(q.Status.Waiting)
	}
	return n
}

// await waits until done says so, asking again with each change.
func (r *run) await(ctx context.Context, what string, done func() (bool, string)) error {
	return r.log.Await(ctx, patience, what, func() (bool, string) {
		r.follow()
		return done()
	})
}

func (r *run) follow() { r.take(r.log.Since(r.read)) }

// keys of the Pods that are there and meet a condition, by name.
func (r *run) keys(meets func(*life) bool) []client.ObjectKey {
	var keys []client.ObjectKey
	for _, l := range r.live {
		if meets(l) {
			keys = append(keys, l.ObjectKey)
		}
	}
	slices.SortFunc(keys, func(a, b client.ObjectKey) int {
		return slices.Compare([]string{a.Name, a.Namespace}, []string{b.Name, b.Namespace})
	})
	return keys
}
