package main

// This file follows the labels that say which GPUs the node has.

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"

	"gpuladder.dev/ladder/drivers/checkpoint"
	"gpuladder.dev/ladder/drivers/durable"
	"gpuladder.dev/ladder/drivers/fake"
	"gpuladder.dev/ladder/drivers/inventory"
	"gpuladder.dev/ladder/drivers/tiers"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// tierFileName keeps what the node had, so that a label which was changed while
// no driver ran does not take devices from under those who use them.
const tierFileName = "tier.json"

// Reasons of Events on the Node.
const (
	eventTierRefused = "FakeTierRefused"
	eventTierChanged = "FakeTierChanged"
)

// tierRetry is how often a change that was refused is looked at again.
const tierRetry = 10 * time.Second

// tierWatch makes the node's hardware what its labels say, as long as none of
// it is in use.
type tierWatch struct {
	client   kubernetes.Interface
	catalog  *tiers.Catalog
	node     *corev1.Node
	path     string
	recorder events.EventRecorder
	hardware *fake.Hardware
	// exclusively is [engine.Engine.Exclusively].
	exclusively func(ctx context.Context, f func(held map[types.UID]*checkpoint.Claim) error) error

	now     tiers.Choice // what the hardware is
	refused string       // the last words of refusal, so that they are said once
}

// begin returns what the node has at the start: what it had before, if there
// is a record; run makes the change then.
func (w *tierWatch) begin(ctx context.Context) (inventory.Pool, error) {
	choice, err := w.recorded()
	if err != nil {
		klog.FromContext(ctx).Error(err, "Going by the node's labels alone")
	}
	if choice != (tiers.Choice{}) {
		if pool, err := w.catalog.Pool(w.node.Name, choice); err == nil {
			w.now = choice
			return pool, nil
		}
		klog.FromContext(ctx).Info("The catalog no longer has what the node had", "before", choice.String())
	}
	choice, err = w.catalog.Choose(w.node.Labels)
	if err != nil {
		w.say(corev1.EventTypeWarning, eventTierRefused, "Publishing no devices: "+err.Error())
		return inventory.Pool{}, nil //nolint:nilerr // told; the labels may become right
	}
	pool, err := w.catalog.Pool(w.node.Name, choice)
	if err != nil {
		return inventory.Pool{}, err
	}
	w.now = choice
	return pool, w.record(choice)
}

func (w *tierWatch) recorded() (tiers.Choice, error) {
	var choice tiers.Choice
	data, err := os.ReadFile(w.path)
	if errors.Is(err, fs.ErrNotExist) {
		return choice, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &choice)
	}
	if err != nil {
		return tiers.Choice{}, fmt.Errorf("reading what the node had, %w", err)
	}
	return choice, nil
}

func (w *tierWatch) record(choice tiers.Choice) error {
	data, err := json.Marshal(choice)
	if err != nil {
		return fmt.Errorf("recording what the node has, %w", err)
	}
	return durable.WriteFile(w.path, append(data, '\n'), 0o600)
}

// run follows the labels until ctx is done.
func (w *tierWatch) run(ctx context.Context) error {
	changed := make(chan struct{}, 1)
	tell := func(any) {
		select {
		case changed <- struct{}{}:
		default: // one signal is waiting already
		}
	}
	factory := informers.NewSharedInformerFactoryWithOptions(w.client, 0, informers.WithTweakListOptions(func(options *metav1.ListOptions) {
		options.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, w.node.Name).String()
	}))
	nodes := factory.Core().V1().Nodes()
	if _, err := nodes.Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: tell, UpdateFunc: func(_, now any) { tell(now) },
	}); err != nil {
		return fmt.Errorf("watching the node, %w", err)
	}
	factory.StartWithContext(ctx)
	defer factory.Shutdown()
	retry := time.NewTicker(tierRetry)
	defer retry.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		case <-retry.C:
			if w.refused == "" {
				continue
			}
		}
		node, err := nodes.Lister().Get(w.node.Name)
		if err != nil {
			continue // it is gone, or not there yet
		}
		if err := w.follow(ctx, node.Labels); err != nil {
			klog.FromContext(ctx).Error(err, "Following the node's labels; trying again")
			w.refused = err.Error()
		}
	}
}

// follow makes the change that the labels ask for, or refuses it in words.
func (w *tierWatch) follow(ctx context.Context, labels map[string]string) error {
	choice, err := w.catalog.Choose(labels)
	if err != nil {
		w.say(corev1.EventTypeWarning, eventTierRefused, w.keeping()+err.Error())
		return nil //nolint:nilerr // told; trying again would not help
	}
	if choice == w.now {
		w.refused = ""
		return nil
	}
	pool, err := w.catalog.Pool(w.node.Name, choice)
	if err != nil {
		return err
	}
	user, err := w.replace(ctx, choice, pool)
	if err != nil {
		return err
	}
	if user != "" {
		w.say(corev1.EventTypeWarning, eventTierRefused, fmt.Sprintf("%sthe labels say %v, and claim %s has a device: delete its Pod, or label the node back", w.keeping(), choice, user))
		return nil
	}
	w.now = choice
	w.refused = ""
	w.say(corev1.EventTypeNormal, eventTierChanged, fmt.Sprintf("The node has %v now", choice))
	w.refused = ""
	return nil
}

// replace makes the node have a pool, unless it names a claim that has a device
// of the present one, prepared or not. No claim is begun or ended meanwhile. One
// whose device was looked up before is refused by settled.
func (w *tierWatch) replace(ctx context.Context, choice tiers.Choice, pool inventory.Pool) (user string, err error) {
	allocated, err := w.allocated(ctx)
	if err != nil {
		return "", err
	}
	err = w.exclusively(ctx, func(held map[types.UID]*checkpoint.Claim) error {
		// The other driver of a rolling update may have made the change: then
		// whoever has a device has one of the new pool.
		if recorded, err := w.recorded(); err != nil || recorded != choice {
			user = allocated
			for _, claim := range held {
				user = claim.Namespace + "/" + claim.Name
			}
			if user != "" {
				return nil
			}
			if err := w.record(choice); err != nil {
				return err
			}
		}
		w.hardware.SetPool(pool)
		return nil
	})
	return user, err
}

// errReplaced occurs for a claim that kubelet wants prepared while the node gets
// other GPUs. Asking again helps, if they suit it.
var errReplaced = errors.New("the node's GPUs were replaced by others in this moment, as its label says")

// settled is that of [engine.Config]: whether a pool is what the node has, by
// the word of whichever driver has changed it last.
func (w *tierWatch) settled(ctx context.Context, pool inventory.Pool) error {
	now, err := w.hardware.Pool(ctx)
	if err != nil {
		return err
	}
	if recorded, err := w.recorded(); err == nil && recorded != (tiers.Choice{}) {
		if made, err := w.catalog.Pool(w.node.Name, recorded); err == nil {
			now = made
		}
	}
	if !equality.Semantic.DeepEqual(now, pool) {
		return errReplaced
	}
	return nil
}

func (w *tierWatch) keeping() string {
	if w.now == (tiers.Choice{}) {
		return "Publishing no devices: "
	}
	return fmt.Sprintf("Keeping %v: ", w.now)
}

// allocated names a claim that is allocated a device of this node.
func (w *tierWatch) allocated(ctx context.Context) (string, error) {
	list, err := w.client.ResourceV1().ResourceClaims(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return "", fmt.Errorf("listing claims, %w", err)
	}
	for i := range list.Items {
		if allocatedOn(&list.Items[i], w.node.Name) {
			return list.Items[i].Namespace + "/" + list.Items[i].Name, nil
		}
	}
	return "", nil
}

func allocatedOn(claim *resourcev1.ResourceClaim, pool string) bool {
	if claim.Status.Allocation == nil {
		return false
	}
	for _, result := range claim.Status.Allocation.Devices.Results {
		if result.Driver == v1alpha1.DriverName && result.Pool == pool {
			return true
		}
	}
	return false
}

// say makes an Event and a line in the log, once for the same words.
func (w *tierWatch) say(kind, reason, words string) {
	if w.refused == words {
		return
	}
	w.refused = words
	klog.Background().Info(words, "reason", reason, "node", w.node.Name)
	w.recorder.Eventf(w.node, nil, kind, reason, "Labelling", "%s", words)
}
