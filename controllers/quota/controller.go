// Package quota is the controller that opens the gates of tenants' Pods in fair
// order and takes borrowed devices back. What a cluster means and whose turn it
// is is said by packages tenants and fair; this package watches, acts, and
// writes the status of TenantQuotas. Everything it needs to know is in the API:
// it can stop at any point and go on from there.
package quota

import (
	"context"
	"fmt"
	"time"

	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"gpuladder.dev/ladder/policies/tenants"
)

// soonest is the shortest time between two rounds that no change asked for.
const soonest = 10 * time.Millisecond

// Controller holds the tenants' quotas. Its rounds are made one after the other.
type Controller struct {
	clock    clock.Clock
	client   client.Client
	recorder events.EventRecorder
	mirror   *tenants.Mirror
	feed     *feed
	tasks    map[string]*task // by the Pod's ID
	planned  int64
	status   map[string]*written  // by quota
	said     map[string]time.Time // by the Pod's ID: when to say again what it goes on with
	maxGrace time.Duration
}

// NewController builds a Controller; c reads from the cache of [CacheOptions].
func NewController(clk clock.Clock, c client.Client, recorder events.EventRecorder, config tenants.Config) (*Controller, error) {
	mirror, err := tenants.NewMirror(config)
	if err != nil {
		return nil, fmt.Errorf("making a quota controller, %w", err)
	}
	return &Controller{
		clock: clk, client: c, recorder: recorder, mirror: mirror, feed: newFeed(),
		tasks: map[string]*task{}, status: map[string]*written{}, said: map[string]time.Time{},
		maxGrace: config.Grace(),
	}, nil
}

// Name is the controller's, in logs.
func (c *Controller) Name() string { return "quota" }

// Register adds the controller to a manager whose cache has [CacheOptions]. It
// works where the manager leads; the caches are kept by all, so that another
// can go on at once. Whether the cluster has PodGroups is asked once, here.
func (c *Controller) Register(ctx context.Context, m ctrl.Manager) error {
	kinds := watched()
	groups, err := servesGroups(m.GetRESTMapper())
	if err != nil {
		return err
	}
	if groups {
		c.mirror.ServeGroups()
		kinds = append(kinds, &schedulingv1beta1.PodGroup{})
	}
	log.FromContext(ctx).V(1).Info("Gangs", "servesPodGroups", groups)
	informers := make([]cache.Informer, 0, len(kinds))
	for _, object := range kinds {
		informer, err := m.GetCache().GetInformer(ctx, object)
		if err != nil {
			return fmt.Errorf("watching %T, %w", object, err)
		}
		informers = append(informers, informer)
	}
	return m.Add(manager.RunnableFunc(func(ctx context.Context) error {
		if err := c.feed.follow(ctx, informers); err != nil {
			return err
		}
		c.run(log.IntoContext(ctx, log.FromContext(ctx).WithName(c.Name())))
		return nil
	}))
}

// run makes rounds until ctx ends: after a change, and when one is due.
func (c *Controller) run(ctx context.Context) {
	for ctx.Err() == nil {
		wait := max(c.Round(ctx).Sub(c.clock.Now()), soonest)
		timer := c.clock.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-c.feed.changed:
		case <-timer.C():
		}
		timer.Stop()
	}
}

// longest is the time after which a round is made although nothing is due.
const longest = time.Minute

// Round takes in what has changed, acts on it and returns when the next round
// is due if nothing changes before.
func (c *Controller) Round(ctx context.Context) time.Time {
	now := c.clock.Now()
	changes := c.feed.take()
	for _, change := range changes {
		if change.gone {
			c.mirror.Delete(change.object)
		} else {
			c.mirror.Put(change.object)
		}
	}
	if err := c.mirror.Sync(now); err != nil {
		log.FromContext(ctx).Error(err, "Objects that could not be counted")
	}
	actions := c.mirror.Next(now)
	for _, a := range actions {
		c.plan(ctx, now, a)
	}
	next := now.Add(longest)
	earlier := func(at time.Time, ok bool) {
		if ok && at.Before(next) {
			next = at
		}
	}
	earlier(c.carryOut(ctx, now))
	earlier(c.say(ctx, now))
	earlier(c.writeStatus(ctx, now, len(changes)+len(actions) > 0), true)
	earlier(c.mirror.Wake(now))
	return next
}
