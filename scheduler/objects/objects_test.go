package objects

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"

	"gpuladder.dev/ladder/policies/api/v1alpha1"
)

// api is an API server that serves some of Ladder's kinds.
type api struct {
	mu      sync.Mutex
	served  map[string]any
	created []*v1alpha1.AllocationDecision
	answer  int
}

func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a.mu.Lock()
	defer a.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	if r.Method == http.MethodPost {
		body, _ := io.ReadAll(r.Body)
		record := &v1alpha1.AllocationDecision{}
		_ = json.Unmarshal(body, record)
		a.created = append(a.created, record)
		a.status(w, a.answer)
		return
	}
	list, ok := a.served[r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]]
	switch {
	case !ok:
		a.status(w, http.StatusNotFound)
	case r.URL.Query().Get("watch") != "":
		// No streaming lists, and nothing ever happens.
		a.status(w, http.StatusBadRequest)
	default:
		_ = json.NewEncoder(w).Encode(list)
	}
}

func (a *api) status(w http.ResponseWriter, code int) {
	reason := map[int]metav1.StatusReason{
		http.StatusNotFound: metav1.StatusReasonNotFound, http.StatusConflict: metav1.StatusReasonAlreadyExists,
		http.StatusBadRequest: metav1.StatusReasonBadRequest, http.StatusForbidden: metav1.StatusReasonForbidden,
	}[code]
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Code: int32(code), Reason: reason,
	})
}

func (a *api) serve(resource string, list any) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.served[resource] = list
}

func typeMeta(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion.String(), Kind: kind}
}

func start(t *testing.T) (*api, rest.Interface) {
	t.Helper()
	a := &api{served: map[string]any{}, answer: http.StatusCreated}
	server := httptest.NewServer(a)
	t.Cleanup(server.Close)
	client, err := NewClient(&rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: "application/vnd.kubernetes.protobuf"}})
	require.NoError(t, err)
	return a, client
}

func TestWatcherWithoutAndWithKinds(t *testing.T) {
	a, client := start(t)
	var mu sync.Mutex
	var seen []runtime.Object
	ready := 0
	w := NewWatcher(client, func(obj runtime.Object, deleted bool) {
		mu.Lock()
		defer mu.Unlock()
		assert.False(t, deleted)
		seen = append(seen, obj)
	}, func() {
		mu.Lock()
		defer mu.Unlock()
		ready++
	})
	assert.False(t, w.Ready(), "nothing is known yet")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	require.NoError(t, w.Start(ctx))
	require.Eventually(t, w.Ready, 10*time.Second, time.Millisecond, "kinds that are not served count as empty")
	require.Eventually(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return ready > 0
	}, 10*time.Second, time.Millisecond)
	assert.Nil(t, w.Policy("p"))
	assert.Nil(t, w.Quota("ns"))

	a.serve("acceleratorpolicies", v1alpha1.AcceleratorPolicyList{
		TypeMeta: typeMeta("AcceleratorPolicyList"), ListMeta: metav1.ListMeta{ResourceVersion: "1"},
		Items: []v1alpha1.AcceleratorPolicy{{ObjectMeta: metav1.ObjectMeta{Name: "p", ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "m"}}}}},
	})
	a.serve("policyrevisions", v1alpha1.PolicyRevisionList{
		TypeMeta: typeMeta("PolicyRevisionList"), ListMeta: metav1.ListMeta{ResourceVersion: "1"},
		Items: []v1alpha1.PolicyRevision{{ObjectMeta: metav1.ObjectMeta{Name: "p-2"}}},
	})
	a.serve("tenantquotas", v1alpha1.TenantQuotaList{
		TypeMeta: typeMeta("TenantQuotaList"), ListMeta: metav1.ListMeta{ResourceVersion: "1"},
		Items: []v1alpha1.TenantQuota{
			{ObjectMeta: metav1.ObjectMeta{Name: "b"}, Spec: v1alpha1.TenantQuotaSpec{Namespaces: []string{"x", "ns"}}},
			{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: v1alpha1.TenantQuotaSpec{Namespaces: []string{"ns"}}},
		},
	})
	require.Eventually(t, func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(seen) == 4
	}, 20*time.Second, time.Millisecond)
	require.NotNil(t, w.Policy("p"))
	assert.Empty(t, w.Policy("p").ManagedFields)
	assert.NotNil(t, w.Revision("p", 2))
	assert.Nil(t, w.Revision("p", 3))
	assert.Equal(t, "a", w.Quota("ns").Name, "one answer, whatever the order of the store")
	assert.Equal(t, "b", w.Quota("x").Name)
	assert.Nil(t, w.Quota("y"))
}

func TestRecords(t *testing.T) {
	a, client := start(t)
	record := &v1alpha1.AllocationDecision{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "r"}}
	record.Spec.Outcome = v1alpha1.OutcomeAllocated
	for code, fails := range map[int]bool{http.StatusCreated: false, http.StatusConflict: false, http.StatusForbidden: true} {
		a.answer = code
		err := NewRecords(client).Create(t.Context(), record)
		assert.Equal(t, fails, err != nil, "%d: %v", code, err)
	}
	require.Len(t, a.created, 3)
	assert.Equal(t, v1alpha1.OutcomeAllocated, a.created[0].Spec.Outcome)
}

// Only changes that a decision can depend on are told.
func TestMatters(t *testing.T) {
	policy := &v1alpha1.AcceleratorPolicy{ObjectMeta: metav1.ObjectMeta{UID: "1", Generation: 1}}
	changed := func(f func(*v1alpha1.AcceleratorPolicy)) *v1alpha1.AcceleratorPolicy {
		c := policy.DeepCopy()
		f(c)
		return c
	}
	assert.False(t, matters(policy, changed(func(p *v1alpha1.AcceleratorPolicy) { p.Labels = map[string]string{"a": "b"} })))
	assert.False(t, matters(policy, changed(func(p *v1alpha1.AcceleratorPolicy) { p.Status.Conditions = []metav1.Condition{{Type: "Ready"}} })))
	assert.True(t, matters(policy, changed(func(p *v1alpha1.AcceleratorPolicy) { p.Status.ActiveRevision = 2 })))
	assert.True(t, matters(policy, changed(func(p *v1alpha1.AcceleratorPolicy) { p.Generation = 2 })))
	assert.True(t, matters(policy, changed(func(p *v1alpha1.AcceleratorPolicy) { p.UID = "2" })))
	quota := &v1alpha1.TenantQuota{ObjectMeta: metav1.ObjectMeta{UID: "1", Generation: 1}}
	used := quota.DeepCopy()
	used.Status.Conditions = []metav1.Condition{{Type: "x"}}
	assert.False(t, matters(quota, used))
	assert.True(t, matters("no object", quota))
}
