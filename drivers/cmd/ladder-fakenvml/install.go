package main

// This file lays out driver roots.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"gpuladder.dev/ladder/drivers/cmd/internal/exit"
	"gpuladder.dev/ladder/drivers/fakenvml"
	"gpuladder.dev/ladder/drivers/node"
	"gpuladder.dev/ladder/drivers/tiers"
)

type installOptions struct {
	root, library, tier, board, machine string
	gpus                                int
	node, kubeconfig, catalog           string
	withhold                            []string
	reset                               bool
	client                              func(kubeconfig string) (kubernetes.Interface, error)
}

func installCommand() *cobra.Command {
	o := &installOptions{client: node.Connect}
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Lay out a driver root with GPUs",
		Long: "Lay out a driver root as NVIDIA's installers do: libraries by the driver's version with libnvidia-ml among them,\n" +
			"device nodes that lead nowhere, and what /proc and /sys have of the GPUs. Those are of a tier, of a board file, or\n" +
			"what the labels " + tiers.LabelTier + " and " + tiers.LabelGPUs + " of a node say.\n\n" +
			"What has happened to the GPUs stays where they are the same as before.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			nodes, err := o.install(cmd.Context())
			if err == nil && !nodes {
				cmd.PrintErrln("There are files in the place of device nodes, which only root may make.")
			}
			return err
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.root, "root", "", "the folder to lay out")
	flags.StringVar(&o.library, "library", "", "the library that was built (default: "+fakenvml.LibraryName+" beside this program)")
	flags.StringVar(&o.tier, "node-tier", "", "the tier whose board it is: h100, h100-mig, l4, …")
	flags.StringVar(&o.board, "board", "", "a board file (YAML) in the place of a tier")
	flags.IntVar(&o.gpus, "gpus", 0, "how many GPUs (default: as many as the tier has)")
	flags.StringVar(&o.machine, "machine", "", "the name that UUIDs are made of (default: the node's or the host's)")
	flags.StringVar(&o.node, "node-name", "", "take tier and number from the labels of this node")
	flags.StringVar(&o.kubeconfig, "kubeconfig", "", "the cluster of the node; without it the Pod's own account, or $KUBECONFIG and ~/.kube/config")
	flags.StringVar(&o.catalog, "catalog", "", "a catalog of tiers in the place of the built-in one, for the labels")
	flags.StringSliceVar(&o.withhold, "withhold", nil, "functions that the library lacks, as older versions do")
	flags.BoolVar(&o.reset, "reset", false, "forget what has happened to the GPUs")
	return cmd
}

// install says whether there are device nodes.
func (o *installOptions) install(ctx context.Context) (bool, error) {
	if o.root == "" {
		return false, errors.New("--root is required")
	}
	if o.gpus < 0 || o.gpus > fakenvml.MaxGPUs {
		return false, fmt.Errorf("--gpus %d, a machine has 1 to %d GPUs", o.gpus, fakenvml.MaxGPUs)
	}
	if o.library == "" {
		program, err := os.Executable()
		if err != nil {
			return false, fmt.Errorf("finding the library, %w", err)
		}
		o.library = filepath.Join(filepath.Dir(program), fakenvml.LibraryName)
	}
	board, machine, err := o.hardware(ctx)
	if err != nil {
		return false, err
	}
	if info, err := os.Stat(o.library); err != nil {
		return false, fmt.Errorf("--library, %w; 'ladder-fakenvml build FILE' makes one", err)
	} else if !info.Mode().IsRegular() {
		return false, fmt.Errorf("--library, %s is no file", o.library)
	}
	if o.reset {
		if err := fakenvml.Install(filepath.Join(o.root, fakenvml.LibraryFolder()), board, machine); err != nil {
			return false, err
		}
	}
	nodes, err := fakenvml.InstallRoot(o.root, o.library, board, machine)
	if err != nil {
		return false, &exit.Error{Err: err}
	}
	if len(o.withhold) > 0 {
		library := filepath.Join(o.root, fakenvml.LibraryFolder(), "libnvidia-ml.so."+board.DriverVersion)
		if err := fakenvml.Withhold(library, o.withhold...); err != nil {
			return false, err
		}
	}
	return nodes, nil
}

// hardware is what the flags, or the node's labels, ask for.
func (o *installOptions) hardware(ctx context.Context) (fakenvml.Board, fakenvml.Machine, error) {
	ways := 0
	for _, flag := range []string{o.tier, o.board, o.node} {
		if flag != "" {
			ways++
		}
	}
	machine := fakenvml.Machine{Name: o.machine, GPUs: o.gpus}
	if ways != 1 {
		return fakenvml.Board{}, machine, errors.New("say one of --node-tier, --board and --node-name")
	}
	if machine.Name == "" {
		machine.Name = o.node
	}
	if machine.Name == "" {
		host, err := os.Hostname()
		if err != nil {
			return fakenvml.Board{}, machine, fmt.Errorf("naming the machine, %w", err)
		}
		machine.Name = host
	}
	if o.board != "" {
		data, err := os.ReadFile(o.board)
		if err != nil {
			return fakenvml.Board{}, machine, fmt.Errorf("reading board, %w", err)
		}
		if machine.GPUs == 0 {
			machine.GPUs = 1
		}
		board, err := fakenvml.ParseBoard(data)
		return board, machine, err
	}
	catalog, err := tiers.Load(o.catalog)
	if err != nil {
		return fakenvml.Board{}, machine, err
	}
	labels := map[string]string{tiers.LabelTier: o.tier}
	if o.node != "" {
		if labels, err = o.labels(ctx); err != nil {
			return fakenvml.Board{}, machine, err
		}
	}
	choice, err := catalog.Choose(labels)
	if err != nil {
		return fakenvml.Board{}, machine, err
	}
	if machine.GPUs == 0 {
		machine.GPUs = choice.GPUs
	}
	board, err := fakenvml.Tier(choice.Tier)
	return board, machine, err
}

func (o *installOptions) labels(ctx context.Context) (map[string]string, error) {
	client, err := o.client(o.kubeconfig)
	if err != nil {
		return nil, err
	}
	found, err := client.CoreV1().Nodes().Get(ctx, o.node, metav1.GetOptions{})
	if err != nil {
		return nil, &exit.Error{Err: fmt.Errorf("looking up node %s, %w", o.node, err)}
	}
	return found.Labels, nil
}
