// Package quota shows what tenants hold and why their Pods wait, and what
// another quota would change. It works on files, with the code of the quota
// controller.
package quota

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/compile"
	"gpuladder.dev/ladder/policies/manifest"
	"gpuladder.dev/ladder/policies/tenants"
	"gpuladder.dev/ladder/tools/internal/command"
	"gpuladder.dev/ladder/tools/internal/revise"
)

// NewCommand returns `ladder quota`.
func NewCommand(s command.Streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "quota",
		Short: "Show what tenants hold, why their Pods wait, and what another quota would change",
	}
	cmd.AddCommand(newShowCommand(s), newExplainCommand(s), newWhatIfCommand(s))
	return cmd
}

// input is what all of the commands read.
type input struct {
	files    command.Files
	settings string
	now      string
	format   command.Format
}

func (i *input) flags(cmd *cobra.Command) {
	i.files.Flags(cmd)
	i.format.Flag(cmd)
	cmd.Flags().StringVar(&i.settings, "settings", "", "file of the controller's --quota-config (default: the defaults)")
	cmd.Flags().StringVar(&i.now, "now", "", "time of the question, in RFC 3339 (default: the newest time in the input)")
}

// state is a cluster as the input has it.
type state struct {
	set    *manifest.Set
	config tenants.Config
	now    time.Time
}

func (i *input) read(ctx context.Context, s command.Streams) (*state, error) {
	if len(i.files.Paths) == 0 {
		return nil, command.BadInput(fmt.Errorf("no input; give files with -f, or - for stdin"))
	}
	config, err := tenants.ReadConfig(i.settings)
	if err != nil {
		return nil, command.BadInput(err)
	}
	set, err := i.files.Read(ctx, s)
	if err != nil {
		return nil, err
	}
	set, changes := revise.Policies(set)
	for _, c := range changes {
		s.Warn("%s", c)
	}
	st := &state{set: set, config: config, now: set.Newest()}
	if i.now != "" {
		if st.now, err = time.Parse(time.RFC3339, i.now); err != nil {
			return nil, command.BadInput(fmt.Errorf("--now %q is no time in RFC 3339; write it like 2026-11-01T00:00:00Z", i.now))
		}
	}
	if st.now.IsZero() {
		return nil, command.BadInput(fmt.Errorf("there is no time in the input; give one with --now"))
	}
	return st, nil
}

// mirror is the cluster as the controller counts it, with some quotas in the
// place of those of the same name.
func (st *state) mirror(instead ...*v1alpha1.TenantQuota) (*tenants.Mirror, error) {
	m, err := tenants.NewMirror(st.config)
	if err != nil {
		return nil, command.Failed(err)
	}
	put[*corev1.Node](m, st)
	put[*corev1.Pod](m, st)
	put[*resourceapi.ResourceClaim](m, st)
	put[*resourceapi.ResourceSlice](m, st)
	put[*resourceapi.DeviceTaintRule](m, st)
	put[*v1alpha1.TenantQuota](m, st)
	put[*v1alpha1.PolicyRevision](m, st)
	// A policy without revisions is revision 1 of itself, as `ladder decide` has it.
	for policy := range manifest.All[*v1alpha1.AcceleratorPolicy](st.set) {
		if _, ok := st.set.Find("PolicyRevision", "", v1alpha1.RevisionName(policy.Name, 1)); ok {
			continue
		}
		if revision, err := compile.Revision(policy, 1); err == nil {
			m.Put(revision)
		}
	}
	for _, q := range instead {
		m.Put(q)
	}
	if err := m.Sync(st.now); err != nil {
		return nil, command.BadInput(err)
	}
	return m, nil
}

// put tells the mirror of all objects of a type. What has no time of creation
// counts as made now.
func put[T interface {
	runtime.Object
	metav1.Object
}](m *tenants.Mirror, st *state) {
	for object := range manifest.All[T](st.set) {
		if created := object.GetCreationTimestamp(); created.IsZero() {
			object.SetCreationTimestamp(metav1.NewTime(st.now))
		}
		m.Put(object)
	}
}
