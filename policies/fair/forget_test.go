package fair_test

import (
	"fmt"
	"testing"
	"time"

	"gpuladder.dev/ladder/policies/fair"
)

// Namespaces come and go: a tenant without quota, work and claims is forgotten.
func TestTenantsAreForgotten(t *testing.T) {
	at := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	st, err := fair.New(fair.Config{})
	if err != nil {
		t.Fatal(err)
	}
	apply := func(events ...fair.Event) {
		t.Helper()
		for _, ev := range events {
			if err := st.Apply(at, ev); err != nil {
				t.Fatal(err)
			}
		}
	}
	known := func(want int) {
		t.Helper()
		if got := st.Tenants(); len(got) != want {
			t.Fatalf("tenants %q are known, want %d", got, want)
		}
	}
	apply(fair.CapacitySet{Model: "H100", Devices: 2}, fair.QuotaSet{Quota: fair.Quota{Tenant: "kept"}})
	for i := range 100 {
		tenant := fmt.Sprintf("ci-%d", i)
		shared := ask(1, "H100")
		shared.Claim = "claim-of-" + tenant
		apply(fair.Arrived{Entry: fair.Entry{ID: tenant, Tenant: tenant, Created: at, Requests: []fair.Request{shared}}},
			fair.Opened{ID: tenant}, fair.Allocated{ID: tenant, Devices: []fair.Devices{{Model: "H100", Count: 1, Claim: shared.Claim}}})
		known(2)
		apply(fair.Deleted{ID: tenant}, fair.Released{ID: tenant})
		known(1)
	}
	if devices, free := st.Capacity("H100"); devices != 2 || free != 2 {
		t.Errorf("%d of %d devices are free", free, devices)
	}
	apply(fair.QuotaSet{Quota: fair.Quota{Tenant: "gone"}})
	known(2)
	apply(fair.QuotaRemoved{Tenant: "gone"})
	known(1)
}
