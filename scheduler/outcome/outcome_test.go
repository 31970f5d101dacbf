package outcome

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	testclock "k8s.io/utils/clock/testing"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
	"gpuladder.dev/ladder/policies/decide"
)

func pod() *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"}}
}

func allocatedOn(node string, devices ...string) *decide.Decision {
	d := &decide.Decision{Namespace: "ns"}
	d.Pod, d.Outcome, d.Policy, d.PolicyRevision, d.Tier, d.Node = "p", v1alpha1.OutcomeAllocated, "pol", 3, "h100", node
	for _, name := range devices {
		d.Devices = append(d.Devices, v1alpha1.DecidedDevice{Driver: "d", Pool: "pool", Device: name, Request: "accelerator/h100", Model: "H100"})
	}
	return d
}

func pendingFor(rejections ...v1alpha1.Rejection) *decide.Decision {
	d := &decide.Decision{Namespace: "ns"}
	d.Pod, d.Outcome = "p", v1alpha1.OutcomePending
	var words []string
	for _, r := range rejections {
		words = append(words, fmt.Sprintf("%d %s", r.Count, r.Code))
	}
	d.Message = "Pending: no tier can be met now: h100 (" + strings.Join(words, ", ") + ")."
	d.Tiers = []v1alpha1.TierEvidence{{Name: "h100", Rejections: rejections}}
	return d
}

func TestSummary(t *testing.T) {
	assert.Equal(t, "H100 (tier h100, revision 3): n1/pool/gpu-0", Summary(allocatedOn("n1", "gpu-0")))
	assert.Equal(t, "H100 (tier h100, revision 3): n1/pool/gpu-0, n1/pool/gpu-1", Summary(allocatedOn("n1", "gpu-0", "gpu-1")))
	plain := allocatedOn("n1", "nic-0")
	plain.PolicyRevision, plain.Tier, plain.Devices[0].Model = 0, "", ""
	assert.Equal(t, "device: n1/pool/nic-0", Summary(plain))
	assert.Equal(t, "no tier can be met now: h100 (4 InUse)", Summary(pendingFor(v1alpha1.Rejection{Code: v1alpha1.ReasonInUse, Count: 4})))
	long := pendingFor()
	long.Message = strings.Repeat("é", 2000)
	assert.LessOrEqual(t, len(Summary(long)), v1alpha1.MaxMessage)
	assert.True(t, strings.HasSuffix(Summary(long), "..."))
}

func TestOutcomeOfClass(t *testing.T) {
	d := pendingFor()
	d.Outcome, d.Class, d.Message = v1alpha1.OutcomeUnsatisfiable, v1alpha1.FailureQuotaNeverFits, "Unsatisfiable: never."
	o := OfDecision(pod(), d)
	assert.Equal(t, ReasonUnsatisfiable, o.Reason)
	assert.Equal(t, "QuotaNeverFits: never", o.Message)
	assert.Equal(t, corev1.ConditionFalse, o.Status)
	failed := OfFailure(pod(), v1alpha1.FailureStaleSlice, "gone")
	assert.Equal(t, "StaleSlice: gone", failed.Message)
}

func TestKeysTellOutcomesApart(t *testing.T) {
	inUse := func(n int32) v1alpha1.Rejection { return v1alpha1.Rejection{Code: v1alpha1.ReasonInUse, Count: n} }
	reserved := v1alpha1.Rejection{Code: v1alpha1.ReasonReserved, Count: 1}
	tainted := v1alpha1.Rejection{Code: v1alpha1.ReasonDeviceTainted, Count: 1}
	base := decisionKey(pendingFor(inUse(4)))
	for name, same := range map[string]*decide.Decision{
		"other counts": pendingFor(inUse(3)),
		"about to be":  pendingFor(reserved),
		"both":         pendingFor(inUse(3), reserved),
	} {
		assert.Equal(t, base, decisionKey(same), name)
		assert.True(t, sameMessage(Summary(pendingFor(inUse(4))), Summary(same)), name)
	}
	assert.NotEqual(t, base, decisionKey(pendingFor(tainted)))
	assert.False(t, sameMessage(Summary(pendingFor(inUse(4))), Summary(pendingFor(tainted))))
	assert.NotEqual(t, decisionKey(allocatedOn("n1", "gpu-0")), decisionKey(allocatedOn("n1", "gpu-1")))
	assert.NotEqual(t, decisionKey(allocatedOn("n1", "gpu-0")), decisionKey(allocatedOn("n2", "gpu-0")))
}

// What is wrong with a policy is told anew when it is something else, and a failure
// that may be over by itself is one whatever the words.
func TestAnotherMistakeIsAnotherOutcome(t *testing.T) {
	invalid := func(message string) Outcome {
		d := pendingFor()
		d.Class, d.Message = v1alpha1.FailurePolicyInvalid, "Pending: "+message+"."
		return OfDecision(pod(), d)
	}
	failure := func(class v1alpha1.FailureClass) func(string) Outcome {
		return func(message string) Outcome { return OfFailure(pod(), class, message) }
	}
	for name, test := range map[string]struct {
		of   func(string) Outcome
		anew bool
	}{
		"a decision":     {invalid, true},
		"PolicyInvalid":  {failure(v1alpha1.FailurePolicyInvalid), true},
		"ClaimGone":      {failure(v1alpha1.FailureClaimGone), true},
		"BindConflict":   {failure(v1alpha1.FailureBindConflict), false},
		"APIUnavailable": {failure(v1alpha1.FailureAPIUnavailable), false},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, pod())
			h.publish(t, test.of("policy h100-frist is not there"), test.of("policy h100-frist is not there"))
			assert.Len(t, h.patches(), 1)
			h.publish(t, test.of("revision 3 is withdrawn"))
			if !test.anew {
				assert.Len(t, h.patches(), 1)
				return
			}
			require.Len(t, h.patches(), 2)
			raw, err := json.Marshal(h.patches()[1])
			require.NoError(t, err)
			assert.Contains(t, string(raw), "revision 3 is withdrawn")
			assert.Len(t, h.events.Events, 2)
		})
	}
}

// What there was no room for is told when it is found out again: the condition by
// itself, and where the record was lost that as well, but no second Event.
func TestWhatWasDroppedIsToldAgain(t *testing.T) {
	inUse := OfDecision(pod(), pendingFor(v1alpha1.Rejection{Code: v1alpha1.ReasonInUse, Count: 4}))
	for name, waiting := range map[string]int{"neither": maxRecords - 2, "the record": maxRecords, "the condition, too": maxPending} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, pod())
			h.mu.Lock()
			for i := range waiting {
				h.tasks[fmt.Sprint(i)] = task{}
			}
			h.mu.Unlock()
			h.Publish(inUse, h.events)
			h.mu.Lock()
			for i := range waiting {
				delete(h.tasks, fmt.Sprint(i))
			}
			h.mu.Unlock()
			h.publish(t, inUse, inUse)
			assert.Len(t, h.records.names, 1)
			assert.NotEmpty(t, h.patches())
			assert.Len(t, h.events.Events, 1)
			assert.False(t, h.last["u"].unsaid)
		})
	}
}

// What the Binding says is the name of the record that is written afterwards.
func TestRecordIsKnownBefore(t *testing.T) {
	o := OfDecision(pod(), allocatedOn("n1", "gpu-0"))
	assert.Equal(t, recordOf(o, 0).Name, o.Record())
	assert.NotEqual(t, o.Record(), OfDecision(pod(), allocatedOn("n1", "gpu-1")).Record())
}

func TestRecordName(t *testing.T) {
	p := pod()
	assert.Equal(t, RecordName(p, "k", 0), RecordName(p, "k", 0))
	assert.NotEqual(t, RecordName(p, "k", 0), RecordName(p, "l", 0))
	again := pod()
	again.UID = "v"
	assert.NotEqual(t, RecordName(p, "k", 0), RecordName(again, "k", 0), "a Pod of the same name is another Pod")
	p.Name = strings.Repeat("a", 235) + "-.-.-.-.-.-.-.-.-z"
	assert.LessOrEqual(t, len(RecordName(p, "k", 0)), 253)
	assert.NotContains(t, RecordName(p, "k", 0), ".-")
	assert.NotEqual(t, RecordName(p, "k", 0), RecordName(p, "k", 1), "an outcome that came back is another record")
}

// records is a Recorder that fails when it is told to.
type records struct {
	sync.Mutex
	names []string
	fail  []error
}

func (r *records) Create(_ context.Context, record *v1alpha1.AllocationDecision) error {
	r.Lock()
	defer r.Unlock()
	if len(r.fail) > 0 {
		err := r.fail[0]
		r.fail = r.fail[1:]
		return err
	}
	r.names = append(r.names, record.Name)
	return nil
}

type harness struct {
	*Publisher
	api     *fake.Clientset
	records *records
	events  *events.FakeRecorder
	gone    atomic.Bool // the Pod
}

func newHarness(t *testing.T, objs ...runtime.Object) *harness {
	t.Helper()
	h := &harness{api: fake.NewClientset(objs...), records: &records{}, events: events.NewFakeRecorder(100)}
	h.Publisher = NewPublisher(h.api, h.records, testclock.NewFakePassiveClock(time.Unix(1000, 0)), func(*corev1.Pod) bool { return !h.gone.Load() }, klog.Background())
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		h.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return h
}

func (h *harness) publish(t *testing.T, outcomes ...Outcome) {
	t.Helper()
	for _, o := range outcomes {
		h.Publish(o, h.events)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	require.NoError(t, h.Flush(ctx))
}

func (h *harness) patches() []map[string]any {
	var result []map[string]any
	for _, action := range h.api.Actions() {
		if patch, ok := action.(clienttesting.PatchAction); ok {
			body := map[string]any{}
			_ = json.Unmarshal(patch.GetPatch(), &body)
			result = append(result, body)
		}
	}
	return result
}

func TestPublishTellsOnce(t *testing.T) {
	h := newHarness(t, pod())
	inUse := pendingFor(v1alpha1.Rejection{Code: v1alpha1.ReasonInUse, Count: 4})
	fewer := pendingFor(v1alpha1.Rejection{Code: v1alpha1.ReasonInUse, Count: 2})
	h.publish(t, OfDecision(pod(), inUse), OfDecision(pod(), inUse), OfDecision(pod(), fewer))
	assert.Len(t, h.records.names, 1)
	require.Len(t, h.patches(), 1)
	assert.Equal(t, map[string]any{"uid": "u"}, h.patches()[0]["metadata"])
	assert.Len(t, h.events.Events, 1)
	assert.Contains(t, <-h.events.Events, "AcceleratorPending no tier can be met now: h100 (4 InUse)")

	h.publish(t, OfDecision(pod(), allocatedOn("n1", "gpu-0")))
	assert.Len(t, h.records.names, 2)
	assert.Len(t, h.patches(), 2)
	assert.Contains(t, <-h.events.Events, "Normal AcceleratorAllocated H100")

	// Back to an outcome that was told before: the condition must say so and the
	// newest record be of it, but that is no news.
	h.publish(t, OfDecision(pod(), inUse))
	require.Len(t, h.records.names, 3)
	assert.NotEqual(t, h.records.names[0], h.records.names[2])
	assert.Len(t, h.patches(), 3)
	assert.Empty(t, h.events.Events)
}

// The Pod at hand still says what held before the outcome that was told last.
func TestPublishDoesNotTrustAnOldPod(t *testing.T) {
	old := pod()
	old.Status.Conditions = []corev1.PodCondition{{
		Type: v1alpha1.ConditionAccelerator, Status: corev1.ConditionFalse, Reason: ReasonPending,
		Message: "no tier can be met now: h100 (4 InUse)",
	}}
	h := newHarness(t, old)
	inUse := pendingFor(v1alpha1.Rejection{Code: v1alpha1.ReasonInUse, Count: 4})
	withdrawn := OfFailure(old, v1alpha1.FailurePolicyInvalid, "revision 1 is withdrawn")
	h.publish(t, OfDecision(old, inUse), withdrawn)
	require.Len(t, h.patches(), 1)
	h.publish(t, OfDecision(old, inUse))
	assert.Len(t, h.patches(), 2, "the condition says the withdrawn revision until it is written again")
}

// After a restart the Pod's condition says what was told.
func TestPublishKnowsWhatThePodSays(t *testing.T) {
	p := pod()
	p.Status.Conditions = []corev1.PodCondition{{
		Type: v1alpha1.ConditionAccelerator, Status: corev1.ConditionFalse, Reason: ReasonPending,
		Message: "no tier can be met now: h100 (9 InUse, 1 Reserved)",
	}}
	h := newHarness(t, p)
	h.publish(t, OfDecision(p, pendingFor(v1alpha1.Rejection{Code: v1alpha1.ReasonInUse, Count: 4})))
	assert.Empty(t, h.patches())
	assert.Empty(t, h.events.Events)
	assert.Len(t, h.records.names, 1, "the record may have been lost; writing it twice is harmless")
}

func TestPublishTriesAgain(t *testing.T) {
	h := newHarness(t, pod())
	h.records.fail = []error{errors.New("timeout"), apierrors.NewTooManyRequests("busy", 1)}
	h.publish(t, OfDecision(pod(), allocatedOn("n1", "gpu-0")))
	assert.Len(t, h.records.names, 1)
}

func TestPublishGivesUpOnWhatCannotWork(t *testing.T) {
	h := newHarness(t) // the Pod is gone
	h.records.fail = []error{apierrors.NewInvalid(v1alpha1.GroupVersion.WithKind("AllocationDecision").GroupKind(), "r", nil)}
	h.publish(t, OfDecision(pod(), allocatedOn("n1", "gpu-0")))
	assert.Empty(t, h.records.names)
	assert.Len(t, h.patches(), 1)
}

func TestTold(t *testing.T) {
	h := newHarness(t, pod())
	assert.False(t, h.Told(pod()))
	h.publish(t, OfFailure(pod(), v1alpha1.FailureNodeLost, "gone"))
	assert.True(t, h.Told(pod()))
	h.Forget(types.UID("u"))
	assert.False(t, h.Told(pod()))
	before := pod()
	before.Status.Conditions = []corev1.PodCondition{{Type: v1alpha1.ConditionAccelerator, Status: corev1.ConditionFalse}}
	assert.True(t, h.Told(before), "by a scheduler that is no more")
}

// Two outcomes of one version of a Pod have an Event each, however soon one
// follows the other.
func TestEventsOfOneVersionAreNotMerged(t *testing.T) {
	h := newHarness(t, pod())
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: h.api.EventsV1()})
	defer broadcaster.Shutdown()
	require.NoError(t, broadcaster.StartRecordingToSinkWithContext(t.Context()))
	recorder := broadcaster.NewRecorder(scheme.Scheme, "ladder")
	for _, code := range []v1alpha1.Reason{v1alpha1.ReasonInUse, v1alpha1.ReasonDeviceTainted} {
		h.Publish(OfDecision(pod(), pendingFor(v1alpha1.Rejection{Code: code, Count: 4})), recorder)
	}
	require.Eventually(t, func() bool {
		list, err := h.api.EventsV1().Events("").List(t.Context(), metav1.ListOptions{})
		if err != nil || len(list.Items) != 2 {
			return false
		}
		for _, e := range list.Items {
			if e.Series != nil || e.Related == nil || e.Related.Kind != "AllocationDecision" {
				return false
			}
		}
		return list.Items[0].Note != list.Items[1].Note
	}, 10*time.Second, 10*time.Millisecond)
}

// A Pod that goes while it is tried is forgotten before what was found out about
// it is told: that is no news, and nothing of it is kept.
func TestPodThatGoesWhileItIsTried(t *testing.T) {
	h := newHarness(t, pod())
	pending := OfDecision(pod(), pendingFor(v1alpha1.Rejection{Code: v1alpha1.ReasonInUse, Count: 4}))
	h.publish(t, pending)
	assert.Len(t, h.events.Events, 1)
	h.gone.Store(true)
	h.Forget("u")
	h.publish(t, pending)
	assert.Len(t, h.events.Events, 1)
	assert.Empty(t, h.last)
	assert.Empty(t, h.told)
	// What it was given is told all the same.
	h.publish(t, OfDecision(pod(), allocatedOn("n1", "gpu-0")))
	assert.Len(t, h.events.Events, 2)
	assert.Empty(t, h.last)
}

func TestForgetLetsANewPodBeTold(t *testing.T) {
	h := newHarness(t, pod())
	o := OfFailure(pod(), v1alpha1.FailureNodeLost, "gone")
	h.publish(t, o)
	h.Forget(types.UID("u"))
	h.publish(t, o)
	assert.Len(t, h.events.Events, 2)
}

// What is said of failed attempts ends the message, however long that is.
func TestWithFailures(t *testing.T) {
	failures := " [failed 1 of 5 attempts, key 0]"
	o := OfFailure(pod(), v1alpha1.FailureStaleSlice, "gone")
	assert.Equal(t, "StaleSlice: gone"+failures, o.With(failures).Message)
	assert.Equal(t, o, o.With(""))
	long := OfFailure(pod(), v1alpha1.FailureStaleSlice, strings.Repeat("é", 2000)).With(failures)
	assert.LessOrEqual(t, len(long.Message), v1alpha1.MaxMessage)
	assert.True(t, strings.HasSuffix(long.Message, " ..."+failures))
	given := OfGivingUp(pod(), v1alpha1.FailureStaleSlice, "gone")
	assert.Equal(t, ReasonGaveUp, given.Reason)
	assert.NotEqual(t, o.key, given.key)
}

// Each failure is counted in the condition, and told by an Event only once.
func TestPublishCountsFailures(t *testing.T) {
	h := newHarness(t, pod())
	o := OfFailure(pod(), v1alpha1.FailureStaleSlice, "gone")
	h.publish(t, o.With(" [failed 1]"), o.With(" [failed 1]"))
	h.publish(t, o.With(" [failed 2]"))
	assert.Len(t, h.patches(), 2)
	assert.Len(t, h.events.Events, 1)
	h.publish(t, OfGivingUp(pod(), v1alpha1.FailureStaleSlice, "gone").With(" [failed 3]"))
	assert.Len(t, h.patches(), 3)
	assert.Len(t, h.events.Events, 2)

	// A decision with the same outcome is not recorded again for that.
	pending := OfDecision(pod(), pendingFor())
	h.publish(t, pending.With(" [failed 3]"))
	h.publish(t, pending.With(" [failed 4]"))
	assert.Len(t, h.records.names, 1)
}

func TestMessageOf(t *testing.T) {
	p := pod()
	assert.Empty(t, MessageOf(p))
	p.Status.Conditions = []corev1.PodCondition{{Type: v1alpha1.ConditionAccelerator, Message: "said"}}
	assert.Equal(t, "said", MessageOf(p))
}
