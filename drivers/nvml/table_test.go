package nvml

// This file runs the program of a node over the simulated library and looks at
// it from outside: at the API server, at kubelet's sockets and at the metrics.
// Each row of the health table is to be seen there, and its end.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	healthpb "k8s.io/kubelet/pkg/apis/dra-health/v1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"gpuladder.dev/ladder/drivers/engine"
	"gpuladder.dev/ladder/drivers/fakenvml"
	"gpuladder.dev/ladder/drivers/inventory"
	program "gpuladder.dev/ladder/drivers/node"
	"gpuladder.dev/ladder/drivers/publish/publishtest"
	"gpuladder.dev/ladder/drivers/xid"
	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// place is a node whose driver runs, with a claim for each of its GPUs.
type place struct {
	*testing.T
	fakenvml.Control
	client   *fake.Clientset
	gpus     *Inventory
	gather   prometheus.Gatherer
	devices  []string
	products map[string]string // the first words that kubelet is told of a device

	mu     sync.Mutex
	stream map[string]*healthpb.DeviceHealth
}

// drive runs the program of a node with simulated boards until the test is over.
func drive(t *testing.T, board string, gpus int, limit time.Duration) *place {
	t.Helper()
	described, err := fakenvml.Tier(board)
	must(t, err)
	root := t.TempDir()
	machine := fakenvml.Machine{Name: "node-1", GPUs: gpus}
	_, err = fakenvml.InstallRoot(root, library, described, machine)
	must(t, err)
	folder := filepath.Join(root, fakenvml.LibraryFolder())
	t.Setenv(fakenvml.DirVariable, folder)
	p := &place{
		T: t, Control: fakenvml.Control{Dir: folder}, products: map[string]string{}, stream: map[string]*healthpb.DeviceHealth{},
		client: publishtest.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1", UID: "node-uid"}}),
	}
	sockets, err := os.MkdirTemp("", "ladder") // sockets have short paths
	must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(sockets) })
	options := &program.Options{
		Name: "node-1", PodUID: "pod", Plugins: filepath.Join(sockets, "p"), Registrar: filepath.Join(sockets, "r"),
		CDIFolder: filepath.Join(sockets, "cdi"), BootIDFile: filepath.Join(sockets, "boot"),
		Health: 50 * time.Millisecond, Recovery: 50 * time.Millisecond, Collect: time.Minute, Stale: time.Hour,
	}
	must(t, errors.Join(os.WriteFile(options.BootIDFile, []byte("boot-1\n"), 0o600), os.Mkdir(options.Registrar, 0o700)))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	made := make(chan struct{})
	go func() {
		ended <- options.Run(ctx, p.client, func(ctx context.Context, on *program.Node) (program.Hardware, error) {
			defer close(made)
			return p.hardware(ctx, on, limit)
		})
	}()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("the driver ended with %v", err)
		}
	})
	select {
	case <-made:
	case err := <-ended:
		t.Fatalf("the driver ended with %v", err)
	}
	eventually(t, "the GPUs are published", func() bool { return len(p.published()) == gpus })
	for _, device := range p.published() {
		p.devices = append(p.devices, device.Name)
		p.products[device.Name] = fmt.Sprintf("%s, %s (%s): ", device.Name, *device.Attributes["model"].StringValue, *device.Attributes["productName"].StringValue)
	}
	slices.Sort(p.devices)
	p.kubelet(options.Registrar)
	return p
}

// hardware makes the inventory that is driven.
func (p *place) hardware(ctx context.Context, on *program.Node, limit time.Duration) (program.Hardware, error) {
	p.gather, _ = on.Registry.(prometheus.Gatherer)
	gpus, err := New(ctx, Config{
		NVML: gonvml.New(gonvml.WithLibraryPath(library)), Editor: &editor{}, Registry: on.Registry,
		MemoryFile: filepath.Join(on.DataFolder, "gpus.json"), BootIDFile: on.BootIDFile,
		CallLimit: limit, PollPeriod: 50 * time.Millisecond, RetryLimit: 60 * time.Millisecond, Settle: time.Hour,
	})
	if err != nil {
		return program.Hardware{}, err
	}
	p.gpus = gpus
	var following errgroup.Group
	following.Go(func() error { return gpus.Run(ctx) })
	return program.Hardware{Inventory: gpus, Run: func(context.Context, *engine.Engine) error { return following.Wait() }}, nil
}

// kubelet registers the driver, prepares a claim for each device, and listens to
// what it is told of them.
func (p *place) kubelet(registrar string) {
	p.Helper()
	dial := func(socket string) *grpc.ClientConn {
		connection, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
		must(p.T, err)
		p.Cleanup(func() { _ = connection.Close() })
		return connection
	}
	var found []string
	eventually(p.T, "the driver can be registered", func() bool {
		found, _ = filepath.Glob(filepath.Join(registrar, "*.sock"))
		return len(found) == 1
	})
	info, err := registerapi.NewRegistrationClient(dial(found[0])).GetInfo(p.Context(), &registerapi.InfoRequest{})
	must(p.T, err)
	socket := dial(info.Endpoint)
	var claims []*drapb.Claim
	for _, device := range p.devices {
		claim := &resourcev1.ResourceClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "of-" + device, UID: types.UID("uid-of-" + device)},
			Status: resourcev1.ResourceClaimStatus{
				ReservedFor: []resourcev1.ResourceClaimConsumerReference{{Resource: "pods", Name: "p", UID: "u"}},
				Allocation: &resourcev1.AllocationResult{Devices: resourcev1.DeviceAllocationResult{
					Results: []resourcev1.DeviceRequestAllocationResult{{Request: "accelerator", Driver: v1alpha1.DriverName, Pool: "node-1", Device: device}},
				}},
			},
		}
		_, err := p.client.ResourceV1().ResourceClaims("team-a").Create(p.Context(), claim, metav1.CreateOptions{})
		must(p.T, err)
		claims = append(claims, &drapb.Claim{Namespace: "team-a", Name: claim.Name, Uid: string(claim.UID)})
	}
	prepared, err := drapb.NewDRAPluginClient(socket).NodePrepareResources(p.Context(), &drapb.NodePrepareResourcesRequest{Claims: claims})
	must(p.T, err)
	for uid, answer := range prepared.Claims {
		if answer.Error != "" {
			p.Fatalf("preparing %s: %s", uid, answer.Error)
		}
	}
	reports, err := healthpb.NewDRAResourceHealthClient(socket).NodeWatchResources(p.Context(), &healthpb.NodeWatchResourcesRequest{})
	must(p.T, err)
	go func() {
		for {
			report, err := reports.Recv()
			if err != nil {
				return // the test is over
			}
			p.mu.Lock()
			for _, device := range report.Devices {
				p.stream[device.Device.DeviceName] = device
			}
			p.mu.Unlock()
		}
	}()
	eventually(p.T, "kubelet is told that all are well", func() bool {
		return !slices.ContainsFunc(p.devices, func(device string) bool { return p.told(device) != "HEALTHY "+p.products[device]+"healthy" })
	})
}

func (p *place) published() (devices []resourcev1.Device) {
	p.Helper()
	list, err := p.client.ResourceV1().ResourceSlices().List(p.Context(), metav1.ListOptions{})
	must(p.T, err)
	for i := range list.Items {
		devices = append(devices, list.Items[i].Spec.Devices...)
	}
	return devices
}

// told is what kubelet was told last.
func (p *place) told(device string) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if said := p.stream[device]; said != nil {
		return said.Health.String() + " " + said.Message
	}
	return ""
}

// shown is all that is told of one device at a time.
type shown struct {
	taints    string // key=value:effect
	kubelet   string // its health and the message
	condition string // in the status of the claim that holds it
}

func (p *place) shown(device string) (s shown) {
	p.Helper()
	for _, d := range p.published() {
		if d.Name == device {
			var taints []string
			for _, taint := range d.Taints {
				taints = append(taints, fmt.Sprintf("%s=%s:%s", taint.Key, taint.Value, taint.Effect))
			}
			s.taints = strings.Join(taints, " ")
		}
	}
	s.kubelet = p.told(device)
	claim, err := p.client.ResourceV1().ResourceClaims("team-a").Get(p.Context(), "of-"+device, metav1.GetOptions{})
	must(p.T, err)
	for _, d := range claim.Status.Devices {
		for _, c := range d.Conditions {
			s.condition += fmt.Sprintf("%s/%s/%s %s=%s:%s %s", d.Driver, d.Pool, d.Device, c.Type, c.Status, c.Reason, c.Message)
		}
	}
	return s
}

// troubled is what is to be shown of a device that has one trouble; words begin
// what it says.
func (p *place) troubled(device string, severity inventory.Severity, reason, words string) shown {
	s := shown{taints: v1alpha1.TaintUnhealthy + "=" + reason + ":NoSchedule"}
	if severity == inventory.Failed {
		s.taints += " " + v1alpha1.TaintFailed + "=" + reason + ":NoExecute"
	}
	message := p.products[device] + severity.String() + ", " + reason + ", " + words
	s.kubelet = "UNHEALTHY " + message
	s.condition = fmt.Sprintf("%s/node-1/%s Healthy=False:%s %s", v1alpha1.DriverName, device, reason, message)
	return s
}

// recovered is what is to be shown once it is over.
func (p *place) recovered(device string) shown {
	message := p.products[device] + "healthy"
	return shown{kubelet: "HEALTHY " + message, condition: fmt.Sprintf("%s/node-1/%s Healthy=True:Healthy %s", v1alpha1.DriverName, device, message)}
}

// begins compares; the words may go on.
func (s shown) begins(want shown) bool {
	return s.taints == want.taints && strings.HasPrefix(s.kubelet, want.kubelet) && strings.HasPrefix(s.condition, want.condition)
}

// awaits waits until a device is shown so.
func (p *place) awaits(device, what string, want shown) {
	p.Helper()
	var got shown
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if got = p.shown(device); got.begins(want) {
			return
		}
	}
	p.Errorf("%s: shown is\n%+v\nwant\n%+v", what, got, want)
}

// event is the Event that there must be of a device: on the Node, and once.
func (p *place) event(device, kind, reason, cause, note string) {
	p.Helper()
	var found []eventsv1.Event
	eventually(p.T, "there is the Event "+reason+" of "+cause, func() bool {
		list, err := p.client.EventsV1().Events("").List(p.Context(), metav1.ListOptions{})
		must(p.T, err)
		found = slices.DeleteFunc(list.Items, func(e eventsv1.Event) bool { return e.Reason != reason || !strings.HasPrefix(e.Note, note) })
		return len(found) > 0
	})
	e := found[0]
	if len(found) != 1 || e.Type != kind || e.Regarding.Kind != "Node" || e.Regarding.Name != "node-1" || e.Regarding.UID != "node-uid" || e.ReportingController != v1alpha1.DriverName {
		p.Errorf("%s: %d Events, the first is %+v", cause, len(found), e)
	}
	if e.Related == nil || e.Related.Kind != "Node" || e.Related.FieldPath != "devices{"+device+"}."+cause {
		p.Errorf("%s: the Event is about %+v", cause, e.Related)
	}
}

// events counts those of devices.
func (p *place) events() (count int) {
	list, err := p.client.EventsV1().Events("").List(p.Context(), metav1.ListOptions{})
	must(p.T, err)
	for i := range list.Items {
		if strings.HasPrefix(list.Items[i].Reason, "Device") {
			count++
		}
	}
	return count
}

// metric is the value of one series: name{label="value",…}.
func (p *place) metric(series string) float64 {
	p.Helper()
	families, err := p.gather.Gather()
	must(p.T, err)
	for _, family := range families {
		for _, m := range family.Metric {
			var labels []string
			for _, label := range m.Label {
				labels = append(labels, fmt.Sprintf("%s=%q", label.GetName(), label.GetValue()))
			}
			if family.GetName()+"{"+strings.Join(labels, ",")+"}" == series {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return 0
}

func (p *place) awaitsMetric(series string, want float64) {
	p.Helper()
	var got float64
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if got = p.metric(series); got == want {
			return
		}
	}
	p.Errorf("%s is %v, want %v", series, got, want)
}

func xidsOf(code int, severity inventory.Severity) string {
	label := fmt.Sprint(code)
	if code > maxXID {
		label = "other"
	}
	return fmt.Sprintf("ladder_driver_xids_total{severity=%q,xid=%q}", severity, label)
}

func devicesAt(severity inventory.Severity) string {
	return fmt.Sprintf("ladder_driver_devices{health=%q}", severity)
}

func cameTo(severity inventory.Severity) string {
	return fmt.Sprintf("ladder_driver_health_transitions_total{to=%q}", severity)
}

// markerXID is an application's error: it is counted, and is nothing else.
const markerXID = 13

// mark has an XID told of the last GPU, and waits until it is: what was told
// before has been taken in then. While NVML is opened anew none is heard, so it
// is told until it is.
func (p *place) mark() {
	p.Helper()
	before := p.metric(xidsOf(markerXID, inventory.Healthy))
	eventually(p.T, "events are heard", func() bool {
		must(p.T, p.XID(len(p.devices)-1, markerXID))
		for range 20 {
			if p.metric(xidsOf(markerXID, inventory.Healthy)) > before {
				return true
			}
			time.Sleep(5 * time.Millisecond)
		}
		return false
	})
}

// spoil counts memory errors of a GPU, and waits until they were read: then a
// reset is seen by their being forgotten, and leaves no other trouble behind.
func (p *place) spoil(gpu int) {
	p.Helper()
	must(p.T, p.ECC(gpu, fakenvml.Errors{DoubleBit: 1}))
	eventually(p.T, "the errors are read", func() bool {
		p.gpus.mu.Lock()
		defer p.gpus.mu.Unlock()
		return p.gpus.gpus[p.devices[gpu]].uncorrectable > 0
	})
}

// TestTableOfXIDs has each XID of the table, and some that it does not have,
// told by the library: the right taints, health for kubelet, condition of the
// claim, Event and metrics appear, and go again after a reset.
func TestTableOfXIDs(t *testing.T) {
	codes := []int{173, 200, 999, 100000}
	for _, row := range xid.Catalog() {
		for code := row.First; code <= row.Last; code++ {
			if code != markerXID { // [place.mark] and TestTableOfSignals have it
				codes = append(codes, code)
			}
		}
	}
	const gpus = 16
	p := drive(t, "h100", gpus, 20*time.Second)
	p.mark()
	for batch := range slices.Chunk(codes, gpus-1) {
		before := make([]shown, len(batch))
		made, counts := p.events(), map[string]float64{}
		want := map[inventory.Severity]int{}
		for i, code := range batch {
			p.spoil(i)
			before[i] = p.shown(p.devices[i])
			severity := meant(code)
			want[severity]++
			counts[xidsOf(code, xid.SeverityOf(code))] = p.metric(xidsOf(code, xid.SeverityOf(code))) + 1
		}
		for _, severity := range []inventory.Severity{inventory.Suspect, inventory.Failed} {
			counts[cameTo(severity)] = p.metric(cameTo(severity)) + float64(want[severity])
		}
		healed := p.metric(cameTo(inventory.Healthy)) + float64(want[inventory.Suspect]+want[inventory.Failed])
		for i, code := range batch {
			must(t, p.XID(i, uint64(code)))
		}
		p.mark()
		for i, code := range batch {
			device, what := p.devices[i], fmt.Sprintf("XID %d", code)
			reason := xid.Reason(min(code, maxXID+1))
			switch meant(code) {
			case inventory.Suspect:
				p.awaits(device, what, p.troubled(device, inventory.Suspect, reason, xid.Describe(min(code, maxXID+1))))
				p.event(device, "Warning", "DeviceUnhealthy", reason, "Device "+device+" is suspect: "+reason+", ")
			case inventory.Failed:
				p.awaits(device, what, p.troubled(device, inventory.Failed, reason, xid.Describe(code)))
				p.event(device, "Warning", "DeviceFailed", reason, "Device "+device+" has failed: "+reason+", ")
			}
		}
		for series, value := range counts {
			p.awaitsMetric(series, value)
		}
		p.awaitsMetric(devicesAt(inventory.Suspect), float64(want[inventory.Suspect]))
		p.awaitsMetric(devicesAt(inventory.Failed), float64(want[inventory.Failed]))
		for i, code := range batch {
			if got := p.shown(p.devices[i]); meant(code) == inventory.Healthy && got != before[i] {
				t.Errorf("XID %d, an application's, is shown as\n%+v\nbefore it was\n%+v", code, got, before[i])
			}
			must(t, p.Reset(i))
		}
		for i, code := range batch {
			if meant(code) == inventory.Healthy {
				continue
			}
			device, reason := p.devices[i], xid.Reason(min(code, maxXID+1))
			p.awaits(device, fmt.Sprintf("the end of XID %d", code), p.recovered(device))
			p.event(device, "Normal", "DeviceRecovered", reason, "Device "+device+" is healthy again: "+reason+" is over")
		}
		p.awaitsMetric(devicesAt(inventory.Healthy), gpus)
		p.awaitsMetric(cameTo(inventory.Healthy), healed)
		if got, want := p.events()-made, 2*(want[inventory.Suspect]+want[inventory.Failed]); got != want {
			t.Errorf("XIDs %v: there are %d Events, want %d", batch, got, want)
		}
	}
}

// meant is the severity of an XID where the recovery action can be read: 154
// only points to that.
func meant(code int) inventory.Severity {
	if xid.ActionOf(code) == xid.AskGPU {
		return inventory.Healthy
	}
	return xid.SeverityOf(code)
}

// signalCase is how a signal of the table comes and goes in the library.
type signalCase struct {
	do, undo func(p *place) error
	// board is the tier where it is not h100; limit that of calls where some hang.
	board string
	limit time.Duration
	// event is one that is told once: a reset ends it.
	event uint64
	// all says that every GPU has it, not only the first.
	all bool
}

// signalCases are in order of what they leave: first those that need events.
func signalCases() map[xid.Signal]signalCase {
	action := func(number uint64) signalCase {
		return signalCase{
			do:   func(p *place) error { return p.Set(0, "recovery_action", number) },
			undo: func(p *place) error { return p.Set(0, "recovery_action", 0) },
		}
	}
	fails := func(function string, ret gonvml.Return) signalCase {
		return signalCase{do: func(p *place) error { return p.Fail(function, 0, uint64(ret)) }, undo: func(p *place) error { return p.ClearFaults() }}
	}
	reset := func(p *place) error { return p.Reset(0) }
	double := func(p *place) error { return p.ECC(0, fakenvml.Errors{DoubleBit: 2}) }
	return map[xid.Signal]signalCase{
		xid.GPUUnavailable:     {event: gonvml.EventTypeGpuUnavailableError},
		xid.RetirementRecorded: {event: gonvml.EventTypeDramRetirementEvent},
		xid.RetirementFailure:  {event: gonvml.EventTypeDramRetirementFailure},
		xid.PoisonContained:    {event: gonvml.EventTypeNonFatalPoisonError},
		xid.PoisonFatal:        {event: gonvml.EventTypeFatalPoisonError},
		xid.SingleBitStorm:     {event: gonvml.EventTypeSingleBitEccErrorStorm},

		xid.ActionGPUReset:      action(1),
		xid.ActionNodeReboot:    action(2),
		xid.ActionDrainP2P:      action(3),
		xid.ActionDrainAndReset: action(4),
		xid.ActionRecoverIMEX:   action(5),
		xid.ActionBusReset:      action(6),
		xid.ActionSystemReboot:  action(7),
		xid.ActionUnknown:       action(99),

		xid.ECCUncorrectable:      {board: "t4", do: double, undo: reset},
		xid.ECCUncorrectableRemap: {do: double, undo: reset},
		xid.RowRemapPending:       {do: func(p *place) error { return p.Remap(0, fakenvml.Remap{Pending: true}) }, undo: reset},
		xid.RowRemapFailure: {
			do:   func(p *place) error { return p.Remap(0, fakenvml.Remap{Failure: true}) },
			undo: func(p *place) error { return p.Remap(0, fakenvml.Remap{}) },
		},
		xid.PageRetirementPending: {
			board: "t4", do: func(p *place) error { return p.Set(0, "retired_pending", 1) }, undo: func(p *place) error { return p.Set(0, "retired_pending", 0) },
		},
		xid.NVLinkDown: {
			do:   func(p *place) error { return errors.Join(p.NVLink(0, 3, false), p.NVLink(0, 17, false)) },
			undo: func(p *place) error { return errors.Join(p.NVLink(0, 3, true), p.NVLink(0, 17, true)) },
		},

		xid.NVMLError:     fails("nvmlDeviceGetFieldValues", gonvml.ERROR_UNKNOWN),
		xid.ResetRequired: fails("*", gonvml.ERROR_RESET_REQUIRED),
		xid.GPULost:       {do: func(p *place) error { return p.Lost(0) }, undo: func(p *place) error { return p.Restored(0) }},
		xid.NVMLUnavailable: {
			do: func(p *place) error { return p.UnloadDriver() }, undo: func(p *place) error { return p.LoadDriver() }, all: true,
		},
		xid.NVMLTimeout: {
			limit: patience, do: func(p *place) error { return p.Hang("nvmlDeviceGetFieldValues", 0, time.Minute) },
			undo: func(p *place) error { return p.ClearFaults() },
		},
		xid.EventsTimeout: {
			limit: patience, all: true, do: func(p *place) error { return p.Hang("nvmlEventSetWait", fakenvml.AllGPUs, time.Minute) },
			undo: func(p *place) error { return p.ClearFaults() },
		},
	}
}

// TestTableOfSignals has each signal of the table come and go: the same that
// TestTableOfXIDs looks at.
func TestTableOfSignals(t *testing.T) {
	cases := signalCases()
	type machine struct {
		board string
		limit time.Duration
	}
	rows := map[machine][]xid.SignalRow{}
	for _, row := range xid.Signals() {
		test, is := cases[row.Signal]
		if !is {
			t.Errorf("%s is not tested", row.Signal)
		}
		of := machine{test.board, test.limit}
		if of.board == "" {
			of.board = "h100"
		}
		if of.limit == 0 {
			of.limit = 20 * time.Second
		}
		rows[of] = append(rows[of], row)
	}
	for of, rows := range rows {
		t.Run(fmt.Sprintf("%s/%v", of.board, of.limit), func(t *testing.T) {
			p := drive(t, of.board, 2, of.limit)
			p.mark()
			// What NVML opens anew for comes last.
			slices.SortStableFunc(rows, func(a, b xid.SignalRow) int {
				return int(max(cases[b.Signal].event, 1)) - int(max(cases[a.Signal].event, 1))
			})
			for _, row := range rows {
				t.Log(row.Signal)
				p.signal(row, cases[row.Signal])
			}
		})
	}
}

// signal has one signal come and go.
func (p *place) signal(row xid.SignalRow, test signalCase) {
	p.Helper()
	device, name := p.devices[0], string(row.Signal)
	if test.event != 0 {
		p.spoil(0)
		test.do = func(p *place) error { return p.Event(fakenvml.Event{GPU: 0, Type: test.event}) }
		test.undo = func(p *place) error { return p.Reset(0) }
	}
	before, other := p.shown(device), p.shown(p.devices[1])
	made := p.events()
	ended, came := p.metric(cameTo(inventory.Healthy)), p.metric(cameTo(row.Severity))
	hit := 1.0
	if test.all {
		hit = 2
	}
	must(p.T, test.do(p))
	if row.Severity == inventory.Healthy {
		p.mark()
		time.Sleep(3 * 50 * time.Millisecond) // readings
		if got := p.shown(device); got != before || p.events() != made || p.metric(devicesAt(inventory.Healthy)) != 2 {
			p.Errorf("%s, which counts against nobody, is shown as\n%+v\nbefore it was\n%+v", name, got, before)
		}
		must(p.T, test.undo(p))
		return
	}
	what := map[inventory.Severity]string{inventory.Suspect: "is suspect: ", inventory.Failed: "has failed: "}[row.Severity]
	event := map[inventory.Severity]string{inventory.Suspect: "DeviceUnhealthy", inventory.Failed: "DeviceFailed"}[row.Severity]
	p.awaits(device, name, p.troubled(device, row.Severity, row.Reason, row.Words))
	p.event(device, "Warning", event, row.Reason, "Device "+device+" "+what+row.Reason+", "+row.Words)
	p.awaitsMetric(devicesAt(row.Severity), hit)
	p.awaitsMetric(cameTo(row.Severity), came+hit)
	if test.all {
		p.awaits(p.devices[1], name+" of the other GPU", p.troubled(p.devices[1], row.Severity, row.Reason, row.Words))
	} else if got := p.shown(p.devices[1]); got != other {
		p.Errorf("%s: the other GPU is shown as %+v", name, got)
	}
	if row.Signal == xid.NVMLUnavailable {
		p.awaitsMetric("ladder_driver_nvml_available{}", 0)
	}
	must(p.T, test.undo(p))
	p.awaits(device, "the end of "+name, p.recovered(device))
	p.event(device, "Normal", "DeviceRecovered", row.Reason, "Device "+device+" is healthy again: "+row.Reason+" is over")
	p.awaitsMetric(devicesAt(inventory.Healthy), 2)
	p.awaitsMetric(cameTo(inventory.Healthy), ended+hit)
	p.awaitsMetric("ladder_driver_nvml_available{}", 1)
	if got := p.events() - made; float64(got) != 2*hit {
		p.Errorf("%s: there are %d Events, want %v", name, got, 2*hit)
	}
}
