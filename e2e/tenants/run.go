package tenants

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpuladder.dev/ladder/e2e/invariants"
	"gpuladder.dev/ladder/e2e/invariants/quota"
	"gpuladder.dev/ladder/e2e/invariants/watchlog"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// patience bounds each wait in which something has to move.
const patience = 5 * time.Minute

// Parts are what can be killed.
type Parts interface {
	// Kill ends a part without warning; it stays down until Restart, which
	// returns when it works.
	Kill(ctx context.Context, part string) error
	Restart(ctx context.Context, part string) error
}

// Setup is what the load is put on: a cluster with the fleet of the options.
type Setup struct {
	Client  client.WithWatch
	Cluster Parts
	// Controller and Scheduler are the names of the parts.
	Controller, Scheduler string
}

// run is one run under way.
type run struct {
	Options
	Setup
	*follower
	log    *watchlog.Log
	draw   *rand.Rand
	out    *Outcome
	start  time.Time
	since  time.Time // when the churn began
	before int       // Pods that were seen before it
}

// Run makes the scene, measures, makes the trouble and judges. It returns an
// error where it could not do all of that; what was judged is told by
// [Outcome.Err]. A violation that was seen before is part of the error.
func Run(ctx context.Context, s Setup, o Options) (*Outcome, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	log, err := watchlog.Start(ctx, s.Client,
		&corev1.PodList{}, &resourcev1.ResourceClaimList{}, &resourcev1.ResourceSliceList{}, &v1alpha1.TenantQuotaList{})
	if err != nil {
		return nil, err
	}
	defer log.Stop()
	r := &run{
		Options: o, Setup: s, follower: newFollower(), log: log, draw: rand.New(rand.NewPCG(o.Seed, 2)),
		out: newOutcome(&o), start: time.Now(),
	}
	if err = r.phases(ctx); err == nil {
		err = r.fence(ctx)
	}
	log.Stop()
	r.judge()
	if err != nil {
		if len(r.out.Limits.Passed) > 0 || r.out.Exclusive.Verdict == invariants.Fail {
			err = errors.Join(err, r.out.Err())
		}
		return nil, err
	}
	if o.History != nil {
		err = log.History().Write(o.History)
	}
	return r.out, err
}

func (r *run) phases(ctx context.Context) error {
	for _, phase := range []struct {
		what string
		do   func(context.Context) error
	}{
		{"making tenants, policies and gates", r.build},
		{"letting a burst of Pods in", r.burst},
		{"freeing one device after another", r.react},
		{"ending what was measured", r.clear},
		{"letting Pods come and go under kills and changes", r.trouble},
		{"waiting until nothing moves", r.rest},
		{"serving what waits", r.drain},
	} {
		r.say("%s", phase.what)
		if err := phase.do(ctx); err != nil {
			return fmt.Errorf("%s, %w", phase.what, err)
		}
	}
	return nil
}

// trouble begins the churn with the usual quotas.
func (r *run) trouble(ctx context.Context) error {
	if err := r.setQuotas(ctx, usual); err != nil {
		return err
	}
	r.since, r.before = time.Now(), len(r.lives)
	return r.churn(ctx)
}

// fence returns when the log has everything until now: each kind is told in the
// order of its changes, so it is enough to see the last one.
func (r *run) fence(ctx context.Context) error {
	claim := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "end-of-the-log"}}
	claim.Spec.Devices.Requests = []resourcev1.DeviceRequest{{ // nobody asks that it be served
		Name: "none", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "none"},
	}}
	if err := create(ctx, r.Client, claim); err != nil {
		return fmt.Errorf("ending the log, %w", err)
	}
	bare := &v1alpha1.TenantQuota{ObjectMeta: metav1.ObjectMeta{Name: tenant(0)}}
	last := bare.DeepCopy()
	last.Annotations = map[string]string{"e2e.gpuladder.dev/end-of-the-log": "true"}
	if err := try(ctx, func(ctx context.Context) error { return r.Client.Patch(ctx, last.DeepCopy(), client.MergeFrom(bare)) }); err != nil {
		return fmt.Errorf("ending the log, %w", err)
	}
	return r.await(ctx, "the end of the log", func() (bool, string) {
		c := watchlog.Get[*resourcev1.ResourceClaim](r.log, client.ObjectKeyFromObject(claim))
		q := watchlog.Get[*v1alpha1.TenantQuota](r.log, client.ObjectKeyFromObject(last))
		return c != nil && q != nil && len(q.Annotations) > 0, "not all was heard of"
	})
}

// judge has the checkers look at the whole log.
func (r *run) judge() {
	history := r.log.History()
	r.out.Limits = quota.Limits(history, r.Settle)
	r.out.Exclusive = invariants.ExclusiveDevices(history)
	r.out.Seconds = time.Since(r.start).Seconds()
	l := &r.out.Limits
	r.say("%d versions judged: %d devices given, %d times up to the limit, %d limits passed, %d crossed on their way down; %s",
		l.Versions, l.Given, l.AtLimit, len(l.Passed), len(l.Crossed), r.out.Exclusive.String())
}

func (r *run) say(format string, args ...any) {
	fmt.Fprintf(r.Progress, "%5.1f s  %s\n", time.Since(r.start).Seconds(), fmt.Sprintf(format, args...))
}
