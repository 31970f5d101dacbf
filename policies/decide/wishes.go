package decide

// Wishes: attributes that the devices of a request should share if possible.

import (
	"slices"
)

// settle chooses the devices for the fixed vector: those that leave the fewest
// wishes unmet, and of these the first in the order of choice. It returns the
// number of unmet wishes.
func (s *search) settle() (unmet int, ok bool) {
	wishes := s.wishesOf()
	if len(wishes) == 0 {
		return 0, s.solve()
	}
	for unmet = range len(wishes) + 1 {
		var best []choice
		for kept := range combinations(len(wishes), len(wishes)-unmet) {
			s.wishes = s.wishes[:0]
			for _, i := range kept {
				s.wishes = append(s.wishes, wishes[i])
			}
			if s.solve() && (best == nil || s.before(best)) {
				best = slices.Clone(s.chosen)
			}
		}
		if best != nil {
			s.undo(0)
			for _, c := range best {
				s.push(choice{alt: c.alt, dev: c.dev, takes: c.takes})
			}
			s.wishes = nil
			return unmet, true
		}
	}
	s.wishes = nil
	return 0, false
}

// wishesOf are the wishes of the request that has some. A wish is met where it
// could as well be a constraint.
func (s *search) wishesOf() []*constraint {
	for _, req := range s.r.prob.requests {
		if len(req.wishes) > 0 {
			return req.wishes
		}
	}
	return nil
}

// before: what is chosen comes before the other choice in the order of choice.
func (s *search) before(other []choice) bool {
	for i := range s.chosen {
		if c := compareDevices(s.chosen[i].dev, other[i].dev); c != 0 {
			return c < 0
		}
	}
	return false
}

// combinations yields the ways to take k of n, in lexicographic order.
func combinations(n, k int) func(yield func([]int) bool) {
	return func(yield func([]int) bool) {
		at := make([]int, k)
		for i := range at {
			at[i] = i
		}
		for {
			if !yield(at) {
				return
			}
			i := k - 1
			for i >= 0 && at[i] == n-k+i {
				i--
			}
			if i < 0 {
				return
			}
			at[i]++
			for j := i + 1; j < k; j++ {
				at[j] = at[j-1] + 1
			}
		}
	}
}
