package simulate

// This file keeps what will happen.

import "cmp"

// eventKind is what happens to a job.
type eventKind int8

const (
	ends     eventKind = iota // its work is done
	releases                  // the devices of an evicted one are free
)

// event of one run of a job. An eviction makes the events of the run void.
type event struct {
	at   int64
	job  int32
	run  int32
	kind eventKind
}

func compareEvents(a, b event) int {
	return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.job, b.job), cmp.Compare(a.run, b.run), cmp.Compare(a.kind, b.kind))
}

// calendar is a binary heap of events, the soonest first.
type calendar []event

func (c calendar) empty() bool { return len(c) == 0 }

func (c *calendar) push(e event) {
	h := append(*c, e)
	for i := len(h) - 1; i > 0; {
		parent := (i - 1) / 2
		if compareEvents(h[parent], h[i]) <= 0 {
			break
		}
		h[parent], h[i] = h[i], h[parent]
		i = parent
	}
	*c = h
}

func (c *calendar) pop() event {
	h := *c
	first, last := h[0], len(h)-1
	h[0] = h[last]
	h = h[:last]
	for i := 0; ; {
		child := 2*i + 1
		if child >= last {
			break
		}
		if child+1 < last && compareEvents(h[child+1], h[child]) < 0 {
			child++
		}
		if compareEvents(h[i], h[child]) <= 0 {
			break
		}
		h[i], h[child] = h[child], h[i]
		i = child
	}
	*c = h
	return first
}
