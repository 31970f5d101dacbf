package nvml

// This file is the loop: open NVML, ask the GPUs, and begin anew when needed.

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"gpuladder.dev/ladder/drivers/xid"
)

// backoff is the wait between looks for what is missing: short at first.
func (i *Inventory) backoff() *wait.Backoff {
	return &wait.Backoff{Duration: i.config.RetryLimit / 30, Factor: 1.7, Jitter: 0.1, Steps: 1 << 20, Cap: i.config.RetryLimit}
}

// ErrOutdated ends Run: NVIDIA's driver was replaced by one of another version,
// and the library of the old one, which this process has opened, can't be
// replaced in it. The next process opens the new one.
var ErrOutdated = errors.New("NVIDIA's driver was replaced, and its library can only be opened anew by another process")

// outdatedAfter is how often the versions must not fit before it is believed:
// files and kernel driver are not replaced at the same moment.
const outdatedAfter = 3

// Run follows the hardware until ctx is done, and then returns nil. Nothing that
// NVML does, or fails to do, ends it before, but [ErrOutdated].
func (i *Inventory) Run(ctx context.Context) error {
	defer i.lookedAt()
	if i.sharer != nil {
		keeping, stop := context.WithCancel(ctx)
		var keeper sync.WaitGroup
		keeper.Go(func() { _ = i.sharer.Run(keeping) }) // never an error
		defer keeper.Wait()
		defer stop()
	}
	retry := i.backoff()
	opened, misfits := false, 0
	for ctx.Err() == nil {
		s, all, err := i.open(ctx)
		if err != nil && ctx.Err() == nil {
			i.setAway(ctx, err)
			if misfits++; !errors.Is(err, nvml.ERROR_LIB_RM_VERSION_MISMATCH) {
				misfits = 0
			}
			if opened && misfits >= outdatedAfter {
				return ErrOutdated
			}
			i.sleep(ctx, retry.Step())
			continue
		}
		if err != nil {
			break
		}
		opened, misfits = true, 0
		incomplete := i.adopt(ctx, s, all)
		if !incomplete && !i.missesOne() {
			retry = i.backoff()
		}
		i.follow(ctx, s, all, incomplete, retry)
		i.mu.Lock()
		i.session = nil
		i.mu.Unlock()
		// Also when ctx is done: the library must not keep what it has open.
		i.close(context.WithoutCancel(ctx), s)
	}
	return nil
}

func (i *Inventory) sleep(ctx context.Context, d time.Duration) {
	timer := i.config.Clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C():
	}
}

// setAway takes in that NVML can't be reached. GPUs keep what was known.
func (i *Inventory) setAway(ctx context.Context, err error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.away == nil || i.away.Error() != err.Error() {
		klog.FromContext(ctx).Error(err, "Keeping what was known of the GPUs, and trying again", "gpus", len(i.gpus))
	}
	i.away, i.session = err, nil
	for _, g := range i.gpus {
		g.handle, g.facts, g.instances = nil, nil, nil
	}
	i.metrics.available.Set(0)
	i.changedReport()
	i.lookedAt()
}

// adopt takes in what a new session has found. It says whether that is
// incomplete: NVML lists a GPU that does not say what it is.
func (i *Inventory) adopt(ctx context.Context, s *session, all []found) (incomplete bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.away != nil {
		klog.FromContext(ctx).Info("NVIDIA's driver is there", "version", s.driverVersion, "gpus", len(all))
	}
	i.away, i.session = nil, s // whether events are heard, the listening tells
	i.metrics.available.Set(1)
	for _, g := range i.gpus {
		g.handle, g.facts, g.instances = nil, nil, nil
	}
	seen := map[string]bool{}
	unnamed := map[int]error{}
	for n := range all {
		f := &all[n]
		if f.facts == nil {
			klog.FromContext(ctx).Error(f.err, "NVML lists a GPU that does not say where it is", "index", f.index)
			unnamed[f.index], incomplete = f.err, true
			continue
		}
		name := f.facts.Address.name()
		if seen[name] {
			klog.FromContext(ctx).Error(fmt.Errorf("%s is listed twice", f.facts.Address), "Leaving out a GPU", "index", f.index)
			continue
		}
		seen[name] = true
		incomplete = !i.adoptOne(ctx, f) || incomplete
	}
	for name, g := range i.gpus {
		if seen[name] {
			continue
		}
		err, known := unnamed[g.Index]
		if !known {
			g.lose(xid.GPULost, "NVML does not list it any more")
			continue
		}
		g.lose(signalOf(err), err.Error())
	}
	if i.noneAllowed() {
		klog.FromContext(ctx).Info("No GPU matches what is allowed and not denied: nothing is published", "gpus", len(all))
	}
	if err := i.save(); err != nil {
		klog.FromContext(ctx).Error(err, "Going on; a restart would not miss a GPU that is lost then")
	}
	i.changedReport()
	i.tell() // the pool may be another one
	return incomplete
}

// adoptOne takes in one GPU; mu is held. It says whether it is known what it is.
func (i *Inventory) adoptOne(ctx context.Context, f *found) bool {
	name := f.facts.Address.name()
	known := i.gpus[name]
	if f.err != nil {
		klog.FromContext(ctx).Error(f.err, "A GPU does not say all that it is", "gpu", name)
		if known != nil {
			known.lose(signalOf(f.err), f.err.Error())
		}
		return false
	}
	if !i.config.Policy.GPUs.includes(&f.facts.identity) {
		klog.FromContext(ctx).V(2).Info("Leaving out a GPU, as configured", "gpu", name, "uuid", f.facts.UUID, "model", f.facts.Model)
		delete(i.gpus, name)
		return true
	}
	if known == nil || known.UUID != f.facts.UUID {
		known = &gpu{links: f.facts.Links, recovery: recovery{last: i.config.Clock.Now()}, uncorrectable: -1}
		i.gpus[name] = known
		klog.FromContext(ctx).Info("Found a GPU", "gpu", name, "uuid", f.facts.UUID, "product", f.facts.Product, "model", f.facts.Model, "partitions", len(partitions(f.facts.Profiles)))
	}
	if known.recovery.last.IsZero() {
		known.recovery.last = i.config.Clock.Now()
	}
	for _, link := range f.facts.Links {
		if !slices.Contains(known.links, link) {
			known.links = append(known.links, link) // it has come up since
		}
	}
	known.identity, known.facts, known.handle, known.calls = f.facts.identity, f.facts, f.handle, f.calls
	i.publish(ctx, known)
	return true
}

// publish makes the devices of a GPU anew; mu is held.
func (i *Inventory) publish(ctx context.Context, g *gpu) {
	made, missing := g.facts.publish(&i.config.Policy.Publish, i.config.Sysfs, g.taken)
	for _, err := range missing {
		klog.FromContext(ctx).V(2).Info("Leaving out an attribute", "gpu", g.Address.name(), "reason", err.Error())
	}
	g.published = made
}

// lose takes in that a GPU can't be used; mu is held.
func (g *gpu) lose(signal xid.Signal, why string) {
	g.handle, g.facts, g.instances = nil, nil, nil
	g.fail(signal, why)
}

func (g *gpu) fail(signal xid.Signal, why string) {
	g.signals = map[xid.Signal]string{signal: why}
	g.recovery.failed(signal)
}

// follow asks the GPUs until the session has to end: ctx is done, NVML is gone,
// it lists another number of GPUs, or it is time to look for what is missing.
func (i *Inventory) follow(ctx context.Context, s *session, all []found, incomplete bool, retry *wait.Backoff) {
	listening, stop := context.WithCancel(ctx)
	var parts sync.WaitGroup
	parts.Go(func() { i.listen(listening, s, all) })
	defer parts.Wait()
	defer stop()
	period := i.config.Clock.NewTicker(i.config.PollPeriod)
	defer period.Stop()
	missing := false
	var again time.Time // when to look for what is missing
	for {
		count, err := i.poll(ctx, s)
		if err != nil {
			if ctx.Err() == nil {
				i.setAway(ctx, &UnavailableError{err})
				i.sleep(ctx, retry.Step())
			}
			return
		}
		i.lookedAt()
		if count != len(all) {
			klog.FromContext(ctx).Info("NVML lists another number of GPUs", "before", len(all), "now", count)
			return
		}
		was, now := missing, i.config.Clock.Now()
		switch missing = incomplete || i.missesOne(); {
		case missing && !was:
			again = now.Add(retry.Step())
		case missing && !now.Before(again) && !i.hangs():
			return // opening it anew may find it
		}
		select {
		case <-ctx.Done():
			return
		case <-period.C():
		case <-i.wake:
		}
	}
}

// missesOne says whether a GPU is not there.
func (i *Inventory) missesOne() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, g := range i.gpus {
		if _, lost := g.signals[xid.GPULost]; lost || g.handle == nil {
			return true
		}
	}
	return false
}

// hangs says whether a call has not returned in time. NVML can't be closed then.
func (i *Inventory) hangs() bool {
	return slices.ContainsFunc(append(slices.Clone(i.workers), i.library, i.events), (*worker).hangs)
}

// poll asks the library how many GPUs it lists, and all of them how they are, at
// the same time. An error is one for which NVML has to be opened anew.
func (i *Inventory) poll(ctx context.Context, s *session) (int, error) {
	count, err := get(ctx, s.calls, "nvmlDeviceGetCount", s.library.DeviceGetCount)
	if err != nil {
		return 0, err
	}
	i.mu.Lock()
	all := i.sorted()
	i.mu.Unlock()
	failed := make([]error, len(all))
	var parts sync.WaitGroup
	for n, g := range all {
		parts.Go(func() { failed[n] = i.pollOne(ctx, s, g) })
	}
	parts.Wait()
	return count, errors.Join(failed...)
}

func (i *Inventory) pollOne(ctx context.Context, s *session, g *gpu) error {
	i.mu.Lock()
	handle, calls, links := g.handle, g.calls, slices.Clone(g.links)
	var profiles []profile
	if g.facts != nil {
		profiles = g.facts.Profiles
	}
	i.mu.Unlock()
	if handle == nil {
		return nil
	}
	begun := i.config.Clock.Now()
	seen, err := s.read(ctx, calls, handle, links, profiles)
	if isOne(err, gone) {
		return err
	}
	if ctx.Err() != nil || errors.Is(err, errClosed) {
		return nil
	}
	var beside others
	known := false
	if err == nil && len(profiles) > 0 {
		beside, known = i.others(ctx, g, seen.instances)
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if g.handle != handle {
		return nil // it is of another session by now
	}
	i.take(ctx, g, begun, &seen, err)
	if known {
		i.takeOthers(ctx, s, g, beside)
	}
	i.changedReport()
	return nil
}

// take takes in a reading, or that there is none; mu is held.
func (i *Inventory) take(ctx context.Context, g *gpu, begun time.Time, seen *reading, err error) {
	if err != nil {
		signal := signalOf(err)
		// One answer that can't be explained may be chance.
		if g.troubled++; signal != xid.NVMLError || g.troubled > 1 {
			g.fail(signal, err.Error())
		}
		klog.FromContext(ctx).V(1).Info("A GPU can't be read", "gpu", g.Address.name(), "signal", signal, "reason", err.Error())
		return
	}
	g.troubled, g.signals, g.instances, g.tellsAction = 0, seen.signals, seen.instances, seen.tellsAction
	reset := g.uncorrectable >= 0 && seen.uncorrectable >= 0 && seen.uncorrectable < g.uncorrectable
	g.uncorrectable = seen.uncorrectable
	if g.recovery.read(begun, i.config.Clock.Now(), seen, reset, i.config.Settle) && len(g.events) > 0 {
		klog.FromContext(ctx).Info("The errors of a GPU are over", "gpu", g.Address.name(), "errors", len(g.events))
		g.events = nil
	}
}
