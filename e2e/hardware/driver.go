package hardware

// This file runs the driver's program, and is its kubelet.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	resourcev1 "k8s.io/api/resource/v1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"sigs.k8s.io/yaml"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// hardwareFlags are those of every command of the program.
func (o *Options) hardwareFlags() []string {
	return []string{"--driver-root", o.DriverRoot, "--sysfs", o.Sysfs, "--proc-root", o.Proc}
}

// listed is what `ladder-nvml-driver list` shows.
type listed struct {
	Devices  []resourcev1.Device `json:"devices"`
	Troubles []struct {
		Device  string `json:"device"`
		Reason  string `json:"reason"`
		Message string `json:"message"`
	} `json:"troubles"`
}

// list runs the program without a cluster.
func list(ctx context.Context, o Options) (*listed, error) {
	var said, complaint bytes.Buffer
	cmd := exec.CommandContext(ctx, o.Driver, append([]string{"list"}, o.hardwareFlags()...)...)
	cmd.Stdout, cmd.Stderr = &said, &complaint
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("running %s list, %w, %s", filepath.Base(o.Driver), err, lastLine(complaint.String()))
	}
	shown := &listed{}
	if err := yaml.Unmarshal(said.Bytes(), shown); err != nil {
		return nil, fmt.Errorf("reading what the driver lists, %w", err)
	}
	return shown, nil
}

func lastLine(text string) string {
	text = strings.TrimSpace(text)
	return text[strings.LastIndex(text, "\n")+1:]
}

// driver is the program as the driver of the node.
type driver struct {
	folder string
	cmd    *exec.Cmd
	log    string
	ended  chan struct{}
	err    error // why it ended; to be read after ended is closed

	connection *grpc.ClientConn
	plugin     drapb.DRAPluginClient
}

func (d *driver) path(name string) string { return filepath.Join(d.folder, name) }

// cdi is the folder of the CDI files.
func (d *driver) cdi() string { return d.path("cdi") }

// startDriver starts it. The folder must have a short path, as sockets are in it.
func startDriver(ctx context.Context, o Options, kubeconfig, folder string) (*driver, error) {
	d := &driver{folder: folder, log: filepath.Join(folder, "driver.log"), ended: make(chan struct{})}
	for _, made := range []string{"p", "r", "cdi"} {
		if err := os.Mkdir(d.path(made), 0o700); err != nil {
			return nil, fmt.Errorf("making folders, %w", err)
		}
	}
	log, err := os.Create(d.log)
	if err != nil {
		return nil, fmt.Errorf("making the driver's log, %w", err)
	}
	defer log.Close() //nolint:errcheck // the driver has its own descriptor
	// It is ended by stop alone, also after an interrupt: what is prepared is taken
	// back first.
	d.cmd = exec.CommandContext(context.WithoutCancel(ctx), o.Driver, append([]string{
		"node", "--node-name", nodeName, "--kubeconfig", kubeconfig, "--plugins-dir", d.path("p"), "--registrar-dir", d.path("r"),
		"--cdi-dir", d.cdi(), "--metrics-address", "", "--pod-uid", "",
	}, o.hardwareFlags()...)...)
	d.cmd.Stdout, d.cmd.Stderr = log, log
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := d.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the driver, %w", err)
	}
	go func() {
		d.err = d.cmd.Wait()
		close(d.ended)
	}()
	return d, nil
}

// endWithin is how long it may take to end.
const endWithin = 20 * time.Second

// stop ends the driver in an orderly way; one that ends with an error, or not at
// all, is an error.
func (d *driver) stop() error {
	if d.connection != nil {
		_ = d.connection.Close() // nothing is sent any more
	}
	_ = d.cmd.Process.Signal(syscall.SIGTERM) // it may have ended, which is seen below
	select {
	case <-d.ended:
	case <-time.After(endWithin):
		_ = d.cmd.Process.Kill() // as above
		<-d.ended
	}
	if d.err != nil {
		return fmt.Errorf("stopping the driver, %w, %s", d.err, d.said())
	}
	return nil
}

// said is the last line of the log.
func (d *driver) said() string {
	data, err := os.ReadFile(d.log)
	if err != nil {
		return err.Error()
	}
	return lastLine(string(data))
}

// errEnded occurs where the driver ends by itself.
var errEnded = errors.New("the driver has ended")

// await waits for something, as long as the driver runs.
func (d *driver) await(ctx context.Context, what string, is func() (bool, error)) error {
	var last error
	for {
		done, err := is()
		if done {
			return nil
		}
		if err != nil {
			last = err
		}
		select {
		case <-d.ended:
			return fmt.Errorf("waiting until %s, %w, %s", what, errors.Join(errEnded, d.err), d.said())
		case <-ctx.Done():
			return fmt.Errorf("waiting until %s, %w, %s", what, errors.Join(ctx.Err(), last), d.said())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func dial(socket string) (*grpc.ClientConn, error) {
	connection, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("dialling %s, %w", socket, err)
	}
	return connection, nil
}

// register does what kubelet does when it finds the registration socket.
func (d *driver) register(ctx context.Context) error {
	socket := filepath.Join(d.path("r"), v1alpha1.DriverName+"-reg.sock")
	if err := d.await(ctx, "there is a registration socket", func() (bool, error) {
		_, err := os.Stat(socket)
		return err == nil, err
	}); err != nil {
		return err
	}
	registrar, err := dial(socket)
	if err != nil {
		return err
	}
	defer registrar.Close() //nolint:errcheck // nothing is sent any more
	client := registerapi.NewRegistrationClient(registrar)
	info, err := client.GetInfo(ctx, &registerapi.InfoRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return fmt.Errorf("asking the driver who it is, %w", err)
	}
	if info.Name != v1alpha1.DriverName || info.Type != registerapi.DRAPlugin {
		return fmt.Errorf("asking the driver who it is, it is %s of type %s", info.Name, info.Type)
	}
	if _, err := client.NotifyRegistrationStatus(ctx, &registerapi.RegistrationStatus{PluginRegistered: true}); err != nil {
		return fmt.Errorf("registering the driver, %w", err)
	}
	if d.connection, err = dial(info.Endpoint); err != nil {
		return err
	}
	d.plugin = drapb.NewDRAPluginClient(d.connection)
	return nil
}

func asked(claim *resourcev1.ResourceClaim) *drapb.Claim {
	return &drapb.Claim{Namespace: claim.Namespace, Name: claim.Name, Uid: string(claim.UID)}
}

// errUnanswered occurs where the driver says nothing of a claim.
var errUnanswered = errors.New("the driver says nothing of it")

// prepare asks for a claim, and returns the CDI devices of its containers.
func (d *driver) prepare(ctx context.Context, claim *resourcev1.ResourceClaim) ([]string, error) {
	response, err := d.plugin.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{asked(claim)}})
	if err != nil {
		return nil, fmt.Errorf("preparing claim %s, %w", claim.Name, err)
	}
	answer := response.Claims[string(claim.UID)]
	switch {
	case answer == nil:
		return nil, fmt.Errorf("preparing claim %s, %w", claim.Name, errUnanswered)
	case answer.Error != "":
		return nil, errors.New(answer.Error)
	}
	var devices []string
	for _, device := range answer.Devices {
		devices = append(devices, device.CdiDeviceIds...)
	}
	return devices, nil
}

// unprepare takes it back.
func (d *driver) unprepare(ctx context.Context, claim *resourcev1.ResourceClaim) error {
	response, err := d.plugin.NodeUnprepareResources(ctx, &drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{asked(claim)}})
	if err != nil {
		return fmt.Errorf("unpreparing claim %s, %w", claim.Name, err)
	}
	answer := response.Claims[string(claim.UID)]
	switch {
	case answer == nil:
		return fmt.Errorf("unpreparing claim %s, %w", claim.Name, errUnanswered)
	case answer.Error != "":
		return errors.New(answer.Error)
	}
	return nil
}
