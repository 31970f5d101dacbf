//go:build e2e

package suites

import "time"

// within bounds what the suites wait for. The bounds are for a busy machine of
// two cores; nothing is made to wait that long where it is ready earlier.
var within = struct {
	// policyReady: a policy was compiled, and admission knows it.
	policyReady time.Duration
	// decided: the scheduler has said what becomes of a Pod.
	decided time.Duration
	// running: a Pod with a decision runs.
	running time.Duration
	// gone: a deleted Pod is gone.
	gone time.Duration
	// freed: after a Pod is gone its device is free and its traces on the node
	// are removed. This is the bound of invariant I9.
	freed time.Duration
	// looked: somebody could look at a node, and found what was waited for.
	looked time.Duration
	// published: a change of a device has reached its slice.
	published time.Duration
	// mended: the fault of a device has ended long enough for its taint to go.
	mended time.Duration
	// counted: the status of a TenantQuota says what is so.
	counted time.Duration
	// told: the kubelet has said in a Pod's status what it knows of a device.
	told time.Duration
	// admission: an admission policy is in force, or no longer.
	admission time.Duration
	// component: something that was killed or restarted works again.
	component time.Duration
	// node: a node that was restarted is Ready again.
	node time.Duration
	// rollout: a DaemonSet or Deployment has been rolled out.
	rollout time.Duration
	// job: a Job of twenty Pods is complete.
	job time.Duration
	// round: a round of the stress suite is over.
	round time.Duration
	// cleanup: what a suite created is removed.
	cleanup time.Duration
	// dump: what there is to say about a failure is written.
	dump time.Duration
}{
	policyReady: 60 * time.Second,
	decided:     60 * time.Second,
	running:     2 * time.Minute,
	gone:        90 * time.Second,
	freed:       30 * time.Second,
	looked:      2 * time.Minute,
	published:   30 * time.Second,
	mended:      2 * time.Minute,
	counted:     60 * time.Second,
	told:        2 * time.Minute,
	admission:   30 * time.Second,
	component:   2 * time.Minute,
	node:        4 * time.Minute,
	rollout:     3 * time.Minute,
	job:         4 * time.Minute,
	round:       5 * time.Minute,
	cleanup:     3 * time.Minute,
	dump:        60 * time.Second,
}

// lookEvery is the time between two looks at what can't be watched: files of a
// node.
const lookEvery = 500 * time.Millisecond
