package fair

// The cheapest set of victims: a knapsack that must be filled, with a budget
// for each tenant.

import (
	"cmp"
	"slices"
	"strings"
)

// group are victims of one tenant, in order of preference, and how many
// devices may be taken from it.
type group struct {
	budget  int64
	victims []victim
}

// exactSteps bounds the work of the exact search; a far larger case than any
// node of a fleet makes is solved by the greedy one.
const exactSteps = 5_000_000

// pick is a set of victims.
type pick struct {
	lost  int64
	ranks []int // of the victims, ascending
}

// better: less is lost, else there are fewer, else they come first by rank.
// What is better stays so when both gain the same victims, so that the best
// set of a sum is made of best sets.
func (p *pick) better(q *pick) bool {
	if q == nil || p.lost != q.lost {
		return q == nil || p.lost < q.lost
	}
	return cmp.Or(cmp.Compare(len(p.ranks), len(q.ranks)), slices.Compare(p.ranks, q.ranks)) < 0
}

// join is the set of both, or nil where that is worse than the rival.
func join(a, b, rival *pick) *pick {
	lost := satAdd(a.lost, b.lost)
	if rival != nil && (lost > rival.lost || lost == rival.lost && len(a.ranks)+len(b.ranks) > len(rival.ranks)) {
		return rival
	}
	p := &pick{lost: lost, ranks: slices.Concat(a.ranks, b.ranks)}
	slices.Sort(p.ranks)
	if p.better(rival) {
		return p
	}
	return rival
}

// byPreference orders victims: the least lost work, then the youngest.
func byPreference(a, b victim) int {
	return cmp.Or(cmp.Compare(a.lost, b.lost), cmp.Compare(b.e.created, a.e.created), strings.Compare(a.e.id, b.e.id))
}

// cover returns the victims that together hold n devices or more and lose the
// least; of equals those that hold the fewest devices, then the fewest victims,
// then those that are first by what they lose, by youth and by ID. Nil where
// there are not enough.
func cover(groups []group, n int64) []*entry {
	var most, count, all int64
	for _, g := range groups {
		var sum int64
		for _, v := range g.victims {
			most = max(most, v.n)
			sum = satAdd(sum, v.n)
			count++
		}
		all = satAdd(all, min(sum, g.budget))
	}
	if all < n || count == 0 {
		return nil
	}
	// Larger sums are never needed: without any one victim it would still do.
	top := min(n+most-1, all)
	if satMul(satMul(top, top), int64(len(groups))) > exactSteps || satMul(top, count) > exactSteps {
		return coverGreedily(groups, n)
	}
	var ranked []victim
	for _, g := range groups {
		ranked = append(ranked, g.victims...)
	}
	slices.SortFunc(ranked, byPreference)
	rank := map[*entry]int{}
	for i, v := range ranked {
		rank[v.e] = i
	}
	best := make([]*pick, top+1)
	best[0] = &pick{}
	for _, g := range groups {
		inside := make([]*pick, min(top, g.budget)+1)
		inside[0] = &pick{}
		for _, v := range g.victims {
			one := &pick{lost: v.lost, ranks: []int{rank[v.e]}}
			for x := int64(len(inside)) - 1; x >= v.n; x-- {
				if rest := inside[x-v.n]; rest != nil {
					inside[x] = join(rest, one, inside[x])
				}
			}
		}
		next := make([]*pick, top+1)
		for y, p := range best {
			for x, q := range inside {
				if p != nil && q != nil && y+x <= int(top) {
					next[y+x] = join(p, q, next[y+x])
				}
			}
		}
		best = next
	}
	var answer *pick
	for _, p := range best[n:] {
		if p != nil && (answer == nil || p.lost < answer.lost) {
			answer = p
		}
	}
	if answer == nil {
		return nil
	}
	var chosen []*entry
	for _, r := range answer.ranks {
		chosen = append(chosen, ranked[r].e)
	}
	return chosen
}

// coverGreedily takes the victims that lose least for each device, then lets
// go those that are not needed, the dearest first.
func coverGreedily(groups []group, n int64) []*entry {
	type candidate struct {
		victim
		group int
	}
	var all []candidate
	for i, g := range groups {
		for _, v := range g.victims {
			all = append(all, candidate{v, i})
		}
	}
	slices.SortFunc(all, func(a, b candidate) int {
		return cmp.Or(cmp.Compare(a.lost/a.n, b.lost/b.n), byPreference(a.victim, b.victim))
	})
	left := make([]int64, len(groups))
	for i := range groups {
		left[i] = groups[i].budget
	}
	var taken []candidate
	var sum int64
	for _, c := range all {
		if sum < n && c.n <= left[c.group] {
			left[c.group] -= c.n
			sum += c.n
			taken = append(taken, c)
		}
	}
	if sum < n {
		return nil
	}
	slices.SortFunc(taken, func(a, b candidate) int { return byPreference(b.victim, a.victim) })
	var chosen []*entry
	for _, c := range taken {
		if sum-c.n >= n {
			sum -= c.n
			continue
		}
		chosen = append(chosen, c.e)
	}
	slices.Reverse(chosen)
	return chosen
}
