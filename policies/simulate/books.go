package simulate

// This file counts, over time, what tenants hold, ask for and are due. All
// sums are whole numbers, so that they are the same on every machine: devices
// times milliseconds.

// maxSteps bounds the points of a timeline; then two steps become one.
const maxSteps = 240

// books are the counts of one run.
type books struct {
	sim    *Simulation
	first  int64
	last   int64 // up to here everything is counted
	held   [][]int64
	holds  []int64 // sum of held, by tenant
	queued []int64 // GPUs of jobs that wait, by tenant
	all    int64   // held by all
	asked  int64   // queued by all

	heldFor [][]int64 // by tenant and model
	// due is what was a tenant's due and got what of it was served, while it had
	// work: thousandths of devices times milliseconds.
	due, got []int64
	// bare is since when a tenant has had work waiting and nothing running; -1:
	// it does not. longest is the longest such time.
	bare, longest []int64
	// contended is the time in which somebody waited, and what was held then.
	contended, heldContended int64

	step   int64
	steps  int // that have begun
	used   [][]int64
	wanted [][]int64
}

func newBooks(s *Simulation, at int64) *books {
	n := len(s.tenants)
	b := &books{
		sim: s, first: at, last: at, held: make([][]int64, n), holds: make([]int64, n), queued: make([]int64, n),
		heldFor: make([][]int64, n), due: make([]int64, n), got: make([]int64, n), bare: make([]int64, n), longest: make([]int64, n),
		used: make([][]int64, n), wanted: make([][]int64, n), step: 1000,
	}
	for t := range n {
		b.held[t], b.heldFor[t] = make([]int64, len(s.models)), make([]int64, len(s.models))
		b.used[t], b.wanted[t] = make([]int64, maxSteps), make([]int64, maxSteps)
		b.bare[t] = -1
	}
	return b
}

// hold adds devices to what a tenant holds.
func (b *books) hold(t int32, model int, n int64) {
	b.held[t][model] += n
	b.holds[t] += n
	b.all += n
}

// ask adds GPUs to what a tenant's jobs wait for.
func (b *books) ask(t int32, n int64) {
	b.queued[t] += n
	b.asked += n
}

// advance counts the time up to now, in which nothing changed.
func (b *books) advance(now int64) {
	d := now - b.last
	if d <= 0 {
		return
	}
	if b.asked > 0 {
		b.contended += d
		b.heldContended += b.all * d
	}
	for t := range b.holds {
		for m, n := range b.held[t] {
			b.heldFor[t][m] += n * d
		}
		due := min(1000*(b.holds[t]+b.queued[t]), b.sim.tenants[t].entitled)
		b.due[t] += due * d
		b.got[t] += min(due, 1000*b.holds[t]) * d
		switch {
		case b.queued[t] == 0 || b.holds[t] > 0:
			b.bare[t] = -1
		case b.bare[t] < 0:
			b.bare[t] = b.last
		}
		if b.bare[t] >= 0 {
			b.longest[t] = max(b.longest[t], now-b.bare[t])
		}
	}
	b.draw(b.last, now)
	b.last = now
}

// draw adds a span of time to the timeline.
func (b *books) draw(from, to int64) {
	for (to-b.first+b.step-1)/b.step > maxSteps {
		b.coarsen()
	}
	for from < to {
		i := (from - b.first) / b.step
		end := min(to, b.first+(i+1)*b.step)
		for t := range b.holds {
			b.used[t][i] += b.holds[t] * (end - from)
			b.wanted[t][i] += b.queued[t] * (end - from)
		}
		b.steps = int(i) + 1
		from = end
	}
}

// coarsen makes one step of two.
func (b *books) coarsen() {
	b.step *= 2
	for _, rows := range [][][]int64{b.used, b.wanted} {
		for _, row := range rows {
			for i := range maxSteps / 2 {
				row[i] = row[2*i] + row[2*i+1]
			}
			clear(row[maxSteps/2:])
		}
	}
	b.steps = (b.steps + 1) / 2
}
