// Package upstream has Kubernetes' own e2e suite for dynamic resource
// allocation judge ladder-scheduler: the suite runs against a cluster with the
// stock kube-scheduler and against one whose default scheduler is
// ladder-scheduler, and every test that passes with the first must pass with
// the second.
//
// Suite is the suite as programs, Selection says which of its tests run, Run is
// what one run found, Compare judges two runs. Images makes the container
// images that the tests' Pods need, where no registry can be asked for them.
package upstream
