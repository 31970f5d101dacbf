package decide

// Versions compared number by number.

import (
	"cmp"
	"strings"
)

// compareVersions compares two versions number by number; a number that is
// missing counts as zero, so 550.54 equals 550.54.0 and is below 550.54.15.
// What follows the numbers (a pre-release, build data) is not looked at. ok is
// false where one of them does not begin with a number.
func compareVersions(a, b string) (order int, ok bool) {
	if !startsWithDigit(a) || !startsWithDigit(b) {
		return 0, false
	}
	for a != "" || b != "" {
		var x, y string
		x, a = nextNumber(a)
		y, b = nextNumber(b)
		// Longer means larger once leading zeros are gone; any size fits.
		if c := cmp.Or(cmp.Compare(len(x), len(y)), cmp.Compare(x, y)); c != 0 {
			return c, true
		}
	}
	return 0, true
}

// nextNumber cuts the leading number, without its leading zeros, and returns
// what comes after the dot; nothing, if something else than a dot follows.
func nextNumber(v string) (number, rest string) {
	i := 0
	for i < len(v) && v[i] >= '0' && v[i] <= '9' {
		i++
	}
	number = strings.TrimLeft(v[:i], "0")
	if i < len(v)-1 && v[i] == '.' && v[i+1] >= '0' && v[i+1] <= '9' {
		return number, v[i+1:]
	}
	return number, ""
}

func startsWithDigit(v string) bool { return v != "" && v[0] >= '0' && v[0] <= '9' }
