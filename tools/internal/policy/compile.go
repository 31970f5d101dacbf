package policy

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/compile"
	"gpuladder.dev/ladder/policies/manifest"
	"gpuladder.dev/ladder/tools/internal/command"
)

func newCompileCommand(s command.Streams) *cobra.Command {
	format := command.YAML
	var files command.Files
	var namespace string
	var revision int64
	cmd := &cobra.Command{
		Use:   "compile FILE|DIR|-...",
		Short: "Print what policies become in Kubernetes",
		Long: `Compile prints, for each AcceleratorPolicy, the DeviceClass of its driver, its
PolicyRevision and the ResourceClaimTemplate of a namespace, as ladder-controller
would make them. What Kubernetes can't express and ladder-scheduler adds stands
in an annotation of the template.`,
		Example: `  {{ladder}} policy compile h100-first.yaml -n team-a
  {{ladder}} policy compile h100-first.yaml --revision 3 -o json`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, paths []string) error {
			files.Paths = paths
			if revision < 1 {
				return command.BadInput(fmt.Errorf("--revision %d is no revision; they count from 1", revision))
			}
			set, err := files.Read(cmd.Context(), s)
			if err != nil {
				return err
			}
			objects, err := compiled(set, namespace, revision)
			if err != nil {
				return command.BadInput(err)
			}
			if len(objects) == 0 {
				return command.BadInput(fmt.Errorf("there is no AcceleratorPolicy in the input"))
			}
			return command.Printed(writeObjects(s.Out, format, objects))
		},
	}
	files.LimitFlags(cmd)
	cmd.Flags().VarP(&format, "output", "o", "how to print the objects; text is yaml")
	cmd.Flags().StringVarP(&namespace, "namespace", "n", metav1.NamespaceDefault, "namespace of the template")
	cmd.Flags().Int64Var(&revision, "revision", 1, "number of the revision")
	return cmd
}

// compiled makes the objects of every policy; a DeviceClass once for each driver.
func compiled(set *manifest.Set, namespace string, number int64) ([]runtime.Object, error) {
	var objects []runtime.Object
	classes := map[string]bool{}
	for p, o := range manifest.All[*v1alpha1.AcceleratorPolicy](set) {
		revision, err := compile.Revision(p, number)
		if err != nil {
			return nil, o.Errorf("", "%v", err)
		}
		template, err := compile.Template(revision, namespace)
		if err != nil {
			return nil, o.Errorf("", "%v", err)
		}
		if !classes[p.Spec.Driver] {
			classes[p.Spec.Driver] = true
			objects = append(objects, compile.DeviceClass(p.Spec.Driver))
		}
		objects = append(objects, revision, template)
	}
	return objects, nil
}

func writeObjects(w io.Writer, format command.Format, objects []runtime.Object) error {
	if format == command.JSON {
		return format.Write(w, map[string]any{"apiVersion": "v1", "kind": "List", "items": objects}, nil)
	}
	for i, o := range objects {
		if i > 0 {
			if _, err := io.WriteString(w, "---\n"); err != nil {
				return err
			}
		}
		raw, err := yaml.Marshal(o)
		if err != nil {
			return err
		}
		if _, err := w.Write(raw); err != nil {
			return err
		}
	}
	return nil
}
