package plugin

// This file asks the hardware how it is, and waits for hardware that does not
// answer: the driver may run before the kernel's driver does.

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"
)

// maxSilence is the longest wait for the next question while the hardware has
// not answered for the first time.
const maxSilence = 30 * time.Second

// watchHealth asks the hardware until ctx is done: at once, then less and less
// often until it answers, then each period and whenever it tells of a change.
func (d *Driver) watchHealth(ctx context.Context) {
	wait := d.config.HealthPeriod
	for d.ask(ctx) != nil {
		select {
		case <-ctx.Done():
			return
		case <-d.config.Inventory.Changed():
		case <-d.config.Clock.After(wait):
			wait = min(2*wait, max(maxSilence, d.config.HealthPeriod))
		}
	}
	period := d.config.Clock.NewTicker(d.config.HealthPeriod)
	defer period.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.config.Inventory.Changed():
		case <-period.C():
		}
		_ = d.ask(ctx) // told, and asked again
		select {
		case d.toPublish <- struct{}{}:
		default: // one signal is waiting already and will see this change too
		}
	}
}

// ask observes, and tells when the hardware falls silent and when it answers
// again. While it is silent kubelet is told nothing, and believes nothing after
// a while.
func (d *Driver) ask(ctx context.Context) error {
	err := d.observe(ctx)
	if ctx.Err() != nil {
		return err
	}
	fell, rose := d.hardware.heard(err)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Asking the hardware for its health; trying again")
	}
	switch {
	case fell:
		d.observer.event(corev1.EventTypeWarning, EventHardwareSilent, "Observing", "The hardware does not answer, its health is not known, and new devices are not published: %v", err)
	case rose:
		klog.FromContext(ctx).Info("The hardware answers")
		d.observer.event(corev1.EventTypeNormal, EventHardwareAnswers, "Observing", "The hardware answers again")
	}
	return err
}

// observe asks the hardware, makes known what has changed, and tells kubelet.
func (d *Driver) observe(ctx context.Context) error {
	said, err := d.config.Inventory.Health(ctx)
	if err != nil {
		return fmt.Errorf("reading health, %w", err)
	}
	transitions, err := d.devices.monitor.Observe(said)
	for _, t := range transitions {
		d.observer.healthChanged(t)
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Going on; a restart would forget the devices' health")
	}
	report, err := d.devices.report(ctx, d.config.NodeName, d.config.Clock)
	if err != nil {
		return err
	}
	d.metrics.count(d.devices, report)
	d.beat.send(report)
	d.claims.saw(report)
	return nil
}

// answers is whether the hardware has answered.
type answers struct {
	// answered is closed with the first answer.
	answered chan struct{}
	*silence
}

type silence struct {
	mu    sync.Mutex
	first sync.Once
	told  bool
	last  error
}

// errNotAsked occurs until the hardware was asked for the first time.
var errNotAsked = errors.New("it was not asked yet")

func newAnswers() answers {
	return answers{answered: make(chan struct{}), silence: &silence{last: errNotAsked}}
}

// heard takes in an answer, or nil for one, and says whether the hardware has
// fallen silent with it, or answers again.
func (a answers) heard(err error) (fell, rose bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	fell, rose = err != nil && !a.told, err == nil && a.told
	a.told, a.last = err != nil, err
	if err == nil {
		a.first.Do(func() { close(a.answered) })
	}
	return fell, rose
}

// problem is why the hardware is taken to be silent, or nil.
func (a answers) problem() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.last != nil {
		return fmt.Errorf("the hardware does not answer, %w", a.last)
	}
	return nil
}
