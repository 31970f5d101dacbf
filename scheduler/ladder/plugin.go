package ladder

import (
	"context"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/dynamicresources"
	plfeature "k8s.io/kubernetes/pkg/scheduler/framework/plugins/feature"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/scheduler/view"
)

// Name is the plugin's name in the registry and in configurations.
const Name = "Ladder"

// Plugin is the scheduler plugin of one profile.
type Plugin struct {
	*dynamicresources.DynamicResources
	core   *Core
	handle fwk.Handle
	// view is what the embedded plugin sees; dra is everything.
	view *view.Manager
	dra  fwk.SharedDRAManager
}

var (
	_ fwk.PreEnqueuePlugin         = &Plugin{}
	_ fwk.PreFilterPlugin          = &Plugin{}
	_ fwk.FilterPlugin             = &Plugin{}
	_ fwk.PostFilterPlugin         = &Plugin{}
	_ fwk.PodGroupPostFilterPlugin = &Plugin{}
	_ fwk.PreScorePlugin           = &Plugin{}
	_ fwk.ScorePlugin              = &Plugin{}
	_ fwk.ReservePlugin            = &Plugin{}
	_ fwk.PreBindPlugin            = &Plugin{}
	_ fwk.BindPlugin               = &Plugin{}
	_ fwk.PostBindPlugin           = &Plugin{}
	_ fwk.EnqueueExtensions        = &Plugin{}
	_ fwk.SignPlugin               = &Plugin{}
)

// Factory returns the function that makes the plugin for each profile.
func (c *Core) Factory() frameworkruntime.PluginFactory {
	return func(ctx context.Context, raw runtime.Object, h fwk.Handle) (fwk.Plugin, error) {
		args := &config.DynamicResourcesArgs{}
		if err := frameworkruntime.DecodeInto(raw, args); err != nil {
			return nil, fmt.Errorf("reading arguments of plugin %s, %w", Name, err)
		}
		if err := CheckGates(utilfeature.DefaultFeatureGate); err != nil {
			return nil, err
		}
		if err := c.startWith(ctx, h); err != nil {
			return nil, fmt.Errorf("starting plugin %s, %w", Name, err)
		}
		decorated := view.NewHandle(h, c.inFlight)
		fts := plfeature.NewSchedulerFeaturesFromGates(utilfeature.DefaultFeatureGate)
		inner, err := dynamicresources.New(ctx, withDefaults(args, fts), decorated, fts)
		if err != nil {
			return nil, fmt.Errorf("making the embedded plugin, %w", err)
		}
		embedded, ok := inner.(*dynamicresources.DynamicResources)
		if !ok {
			return nil, fmt.Errorf("making the embedded plugin, got %T", inner)
		}
		return &Plugin{DynamicResources: embedded, core: c, handle: h, view: decorated.DRA, dra: h.SharedDRAManager()}, nil
	}
}

// Name implements fwk.Plugin.
func (*Plugin) Name() string { return Name }

// CheckGates refuses feature gates with which upstream's allocator visits pools
// in no fixed order.
func CheckGates(gates featuregate.FeatureGate) error {
	f := dynamicresources.AllocatorFeatures(plfeature.NewSchedulerFeaturesFromGates(gates))
	if f.DeviceBindingAndStatus || f.ConsumableCapacity || f.FractionalCapacityRange || f.ListTypeAttributes ||
		f.OptionalNodeOperations || f.DerivedAttributes || f.CompatibilityGroups {
		return nil
	}
	return fmt.Errorf("these feature gates select Kubernetes' \"stable\" DRA allocator, which visits pools in random order, "+
		"so that decisions could not be reproduced: turn on %s, %s or %s",
		"DRAConsumableCapacity", "DRADeviceBindingConditions", "DRAFractionalCapacityRange")
}

// withDefaults fills in what kube-scheduler's own defaulting does for the
// embedded plugin under its own name.
func withDefaults(args *config.DynamicResourcesArgs, fts plfeature.Features) *config.DynamicResourcesArgs {
	if args.FilterTimeout == nil && fts.EnableDRASchedulerFilterTimeout {
		args.FilterTimeout = &metav1.Duration{Duration: config.DynamicResourcesFilterTimeoutDefault}
	}
	if args.BindingTimeout == nil && fts.EnableDRADeviceBindingConditions {
		args.BindingTimeout = &metav1.Duration{Duration: config.DynamicResourcesBindingTimeoutDefault}
	}
	return args
}

func sameLabels(a, b map[string]string) bool { return maps.Equal(a, b) }

// sameAnnotations says whether two versions of a Pod agree in the annotations that
// a decision depends on: the policy for an extended resource, and the models that
// its turn is for.
func sameAnnotations(a, b *corev1.Pod) bool {
	return a.Annotations[v1alpha1.AnnotationExtendedResourcePolicy] == b.Annotations[v1alpha1.AnnotationExtendedResourcePolicy] &&
		a.Annotations[v1alpha1.AnnotationTurnModels] == b.Annotations[v1alpha1.AnnotationTurnModels]
}

// SignPod implements fwk.SignPlugin: what was found for one Pod is not reused for
// another that looks the same where Ladder may have something to say about it.
func (p *Plugin) SignPod(ctx context.Context, pod *corev1.Pod) ([]fwk.SignFragment, *fwk.Status) {
	if p.answersFor(pod) {
		return nil, fwk.NewStatus(fwk.Unschedulable, "the Pod names a policy, or its tenant has limits")
	}
	return p.DynamicResources.SignPod(ctx, pod)
}
