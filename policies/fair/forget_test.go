package fair_test

import (
	"fmt"
	"testing"

	"gpuladder.dev/ladder/policies/fair"
)

// Namespaces come and go: a tenant without quota, work and claims is forgotten.
func TestTenantsAreForgotten(t *testing.T) {
	st := newState(t, fair.Config{})
	known := func(want int) {
		t.Helper()
		if got := st.Tenants(); len(got) != want {
			t.Fatalf("tenants %q are known, want %d", got, want)
		}
	}
	apply(t, st, start, fleet(2, "H100"), quota("kept"))
	for i := range 100 {
		tenant := fmt.Sprintf("ci-%d", i)
		shared := ask(1, "H100")
		shared.Claim = "claim-of-" + tenant
		apply(t, st, start, fair.Arrived{Entry: fair.Entry{ID: tenant, Tenant: tenant, Created: start, Requests: []fair.Request{shared}}},
			fair.Opened{ID: tenant}, fair.Allocated{ID: tenant, Devices: []fair.Devices{{Model: "H100", Count: 1, Claim: shared.Claim}}})
		known(2)
		apply(t, st, start, fair.Deleted{ID: tenant}, fair.Released{ID: tenant})
		known(1)
	}
	if devices, free := st.Capacity("H100"); devices != 2 || free != 2 {
		t.Errorf("%d of %d devices are free", free, devices)
	}
	apply(t, st, start, quota("gone"))
	known(2)
	apply(t, st, start, fair.QuotaRemoved{Tenant: "gone"})
	known(1)
}
