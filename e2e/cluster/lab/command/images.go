package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"gpuladder.dev/ladder/e2e/cluster/docker"
	"gpuladder.dev/ladder/e2e/images"
)

func newImages() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "images",
		Short: "Build the images of Ladder",
		Long: `Build the images of Ladder from the working tree, without a registry. Each is a
Dockerfile and programs, static but for the driver of NVIDIA's GPUs, which brings
the C library that it was linked against. All bear one tag, a hash of what is in
them.`,
	}
	cmd.AddCommand(newImagesBuild(), newImagesList(), newImagesContext())
	return cmd
}

func newImagesBuild() *cobra.Command {
	var out output
	options := docker.Options{Install: true}
	var plan bool
	cmd := &cobra.Command{
		Use:   "build",
		Short: "Build all images and save each as an archive",
		Long: `Build all images with Docker or podman, save each as an archive, and print their
names. What is there already is left as it is. Where root has no container
engine, a private Docker daemon is started for the time of the build.`,
		Example: `  ladder-lab images build
  ladder-lab kind load $(ladder-lab images build -o json | jq -r '.images[].archive')`,
		Args: exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			asJSON, err := out.json()
			if err != nil {
				return err
			}
			options.Progress = cmd.ErrOrStderr()
			set, err := buildImages(ctx, options, plan)
			if err != nil || set == nil {
				return err
			}
			if asJSON {
				return writeIndented(cmd.OutOrStdout(), set)
			}
			table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
			for _, built := range set.Images {
				fmt.Fprintf(table, "%s\t%s\n", built.Reference, built.Archive)
			}
			return table.Flush()
		},
	}
	out.register(cmd)
	cmd.Flags().BoolVar(&options.Install, "install", options.Install, "install docker.io where root on Debian or Ubuntu has no container engine")
	cmd.Flags().BoolVar(&options.Private, "private", false, "use a private Docker daemon even where another engine answers")
	cmd.Flags().StringVar(&options.Dir, "engine-dir", "", "folder of a private Docker daemon (default: below the cache)")
	cmd.Flags().BoolVar(&plan, "plan", false, "say which engine would be used, and do nothing")
	return cmd
}

// buildImages says what will be done, and does it. It returns nil where only
// the plan was asked for. An engine that it started is stopped again, unless
// somebody has put it to use meanwhile.
func buildImages(ctx context.Context, options docker.Options, onlyPlan bool) (set *images.Set, err error) {
	plan, err := docker.Detect(ctx, options)
	if err != nil {
		return nil, err
	}
	list(options.Progress, "what will be done:", append(plan.Steps, "build what is missing of "+fmt.Sprint(images.Names())))
	list(options.Progress, "to know:", plan.Notes)
	if onlyPlan {
		return nil, nil
	}
	engine, err := plan.Open(ctx)
	if err != nil {
		return nil, err
	}
	if engine.Started() {
		defer func() { err = errors.Join(err, closeIdle(context.WithoutCancel(ctx), engine)) }()
	}
	return images.Build(ctx, engine, options.Progress)
}

func newImagesList() *cobra.Command {
	var out output
	cmd := &cobra.Command{
		Use:   "list",
		Short: "Tell which images there are and which builds are saved",
		Args:  exactly(0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			asJSON, err := out.json()
			if err != nil {
				return err
			}
			saved, err := images.Saved()
			if err != nil {
				return err
			}
			w := cmd.OutOrStdout()
			if asJSON {
				return writeIndented(w, map[string]any{"images": images.All(), "saved": append([]images.Archives{}, saved...)})
			}
			table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
			fmt.Fprintln(table, "IMAGE\tREPOSITORY\tDOCKERFILE")
			for _, image := range images.All() {
				fmt.Fprintf(table, "%s\t%s\t%s\n", image.Name, image.Repository, image.Dockerfile)
			}
			fmt.Fprintln(table, "\nSAVED TAG\tBUILT\tSIZE")
			for _, build := range saved {
				fmt.Fprintf(table, "%s\t%s\t%.0f MB\n", build.Tag, build.Time.Format(time.DateTime), float64(build.Bytes)/1e6)
			}
			return table.Flush()
		},
	}
	out.register(cmd)
	return cmd
}

func newImagesContext() *cobra.Command {
	return &cobra.Command{
		Use:   "context IMAGE DIR",
		Short: "Gather what an image is built from in a folder",
		Long: `Fill a folder, which must be empty or missing, with the Dockerfile and the
programs of an image, for a builder and a registry of one's own.`,
		Example: `  ladder-lab images context ladder-scheduler build/scheduler
  docker build -t registry.example.com/ladder/ladder-scheduler:v1 build/scheduler
  docker push registry.example.com/ladder/ladder-scheduler:v1`,
		Args: exactly(2),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 0 {
				return images.Names(), cobra.ShellCompDirectiveNoFileComp
			}
			return nil, cobra.ShellCompDirectiveFilterDirs
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, stop := signal.NotifyContext(cmd.Context(), syscall.SIGINT, syscall.SIGTERM)
			defer stop()
			if _, err := images.Lookup(args[0]); err != nil {
				return usage(err)
			}
			return images.WriteContext(ctx, cmd.ErrOrStderr(), args[0], args[1])
		},
	}
}

func writeIndented(w io.Writer, v any) error {
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(v)
}
