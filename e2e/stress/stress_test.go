package stress

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestPlanComesFromTheSeed(t *testing.T) {
	a, b := Plan(7, 10, 20, 10, 3), Plan(7, 10, 20, 10, 3)
	if !reflect.DeepEqual(a, b) {
		t.Error("one seed, two plans")
	}
	if reflect.DeepEqual(a, Plan(8, 10, 20, 10, 3)) {
		t.Error("two seeds, one plan")
	}
	fates := map[Fate]int{}
	for _, r := range a {
		if len(r.Pods) != 20 || len(r.Kills) != 3 {
			t.Fatalf("a round of %d Pods and %d kills", len(r.Pods), len(r.Kills))
		}
		if r.Lag < 1 || r.Lag > 9 {
			t.Errorf("lag %d: with 10 devices one must be left for the Pods that wait", r.Lag)
		}
		for i, k := range r.Kills {
			if k.After < 1 || k.After > 40 || k.Delay >= longestDelay || k.Choice < 0 || k.Choice >= 1 || i > 0 && k.After < r.Kills[i-1].After {
				t.Errorf("kills %+v", r.Kills)
			}
		}
		for _, f := range r.Pods {
			fates[f]++
		}
	}
	if len(fates) != 3 || fates[WhenRunning] < 100 {
		t.Errorf("fates %v", fates)
	}
	for _, r := range Plan(1, 5, 3, 1, 0) {
		if r.Lag != 1 {
			t.Errorf("lag %d with one device", r.Lag)
		}
	}
}

// world is a cluster in memory: Pods get devices in the order of creation as
// long as there are some, and run a moment after that.
type world struct {
	mu      sync.Mutex
	pods    []*corev1.Pod
	changed chan struct{}
	devices int
	most    int // running at once
	created int
	ran     map[string]bool
	kills   int
	settled int
	broken  bool // no Pod ever runs
	killErr error
}

func newWorld(devices int) *world {
	return &world{changed: make(chan struct{}), devices: devices, ran: map[string]bool{}}
}

func (w *world) tell() {
	close(w.changed)
	w.changed = make(chan struct{})
}

// play moves each Pod one step on.
func (w *world) play(ctx context.Context) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		w.mu.Lock()
		var left []*corev1.Pod
		used := 0
		for _, p := range w.pods {
			if p.Spec.NodeName != "" {
				used++
			}
		}
		for _, old := range w.pods {
			p := old.DeepCopy()
			switch {
			case p.DeletionTimestamp != nil:
				continue
			case p.Spec.NodeName == "" && used < w.devices:
				p.Spec.NodeName = "node"
				used++
			case p.Spec.NodeName != "" && !w.broken:
				p.Status.Phase = corev1.PodRunning
			}
			left = append(left, p)
		}
		w.most = max(w.most, used)
		w.pods = left
		w.tell()
		w.mu.Unlock()
	}
}

func (w *world) Create(_ context.Context, name string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.created++
	w.pods = append(w.pods, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(fmt.Sprint(name, w.created))}})
	w.tell()
	return nil
}

func (w *world) Delete(_ context.Context, name string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, p := range w.pods {
		if p.Name == name {
			w.pods[i] = p.DeepCopy()
			w.pods[i].DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
		}
	}
	w.tell()
	return nil
}

func (w *world) Pods() []*corev1.Pod {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]*corev1.Pod(nil), w.pods...)
}

func (w *world) Changed() <-chan struct{} {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.changed
}

func (w *world) Kill(context.Context, float64) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.kills++
	return "the driver", w.killErr
}

func (w *world) Running(_ context.Context, pod *corev1.Pod) error {
	w.ran[pod.Name] = true
	return nil
}

func (w *world) Settled(context.Context, int) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.settled++
	for _, p := range w.pods {
		if p.DeletionTimestamp == nil {
			return fmt.Errorf("Pod %s is left", p.Name)
		}
	}
	return nil
}

func TestRun(t *testing.T) {
	w := newWorld(4)
	go w.play(t.Context())
	var out bytes.Buffer
	o := Options{Seed: 3, Rounds: 4, Pods: 12, Devices: 4, KillsPerRound: 2, Within: 30 * time.Second, Out: &out}
	if err := Run(t.Context(), o, w); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	w.mu.Lock() // it plays on until the test ends
	defer w.mu.Unlock()
	want := 0
	for _, r := range Plan(3, 4, 12, 4, 2) {
		for _, f := range r.Pods {
			if f == WhenRunning {
				want++
			}
		}
	}
	if w.created != 48 || w.kills != 8 || w.settled != 4 || len(w.ran) < want {
		t.Errorf("%d Pods, %d kills, %d rounds settled, %d Pods ran of at least %d", w.created, w.kills, w.settled, len(w.ran), want)
	}
	if w.most < 2 {
		t.Errorf("never more than %d devices in use: that is no stress", w.most)
	}
	if !strings.Contains(out.String(), "seed 3") || !strings.Contains(out.String(), "killed the driver") {
		t.Errorf("it says:\n%s", out.String())
	}
}

func TestRunTellsWhatIsStuck(t *testing.T) {
	w := newWorld(2)
	w.broken = true
	go w.play(t.Context())
	err := Run(t.Context(), Options{Seed: 5, Rounds: 1, Pods: 6, Devices: 2, Within: 200 * time.Millisecond, Out: io.Discard}, w)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "seed 5") || !strings.Contains(err.Error(), "WhenRunning") {
		t.Errorf("Run = %v", err)
	}
}

func TestRunFailsWhenAKillDoes(t *testing.T) {
	w := newWorld(2)
	w.killErr = errors.New("nothing to kill")
	go w.play(t.Context())
	err := Run(t.Context(), Options{Seed: 1, Rounds: 1, Pods: 3, Devices: 2, KillsPerRound: 1, Within: 10 * time.Second, Out: io.Discard}, w)
	if !errors.Is(err, w.killErr) {
		t.Errorf("Run = %v", err)
	}
}
