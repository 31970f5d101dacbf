package fair

// Counts that cannot overflow: sums, products and ratios of int64 that stop at
// the ends of their range instead of turning round.

import (
	"math"
	"math/bits"
)

// none is the room where nothing sets a limit.
const none = math.MaxInt64

// satAdd is a+b, held inside int64.
func satAdd(a, b int64) int64 {
	sum := a + b
	switch {
	case a > 0 && b > 0 && sum < 0:
		return math.MaxInt64
	case a < 0 && b < 0 && sum >= 0:
		return math.MinInt64
	}
	return sum
}

// satSub is a-b, held inside int64.
func satSub(a, b int64) int64 {
	if b == math.MinInt64 {
		return satAdd(satAdd(a, math.MaxInt64), 1)
	}
	return satAdd(a, -b)
}

// satMul is a*b for counts that are not negative, held inside int64.
func satMul(a, b int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi != 0 || lo > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(lo)
}

// mulDiv is a*b/c for numbers that are not negative, with the product in 128
// bits. By zero it is the largest number, and zero where the product is zero.
func mulDiv(a, b, c int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	switch {
	case hi == 0 && lo == 0:
		return 0
	case c <= 0 || hi >= uint64(c):
		return math.MaxInt64
	}
	q, _ := bits.Div64(hi, lo, uint64(c))
	if q > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(q)
}
