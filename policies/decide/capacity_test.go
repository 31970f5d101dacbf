package decide

import (
	"errors"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

func q(s string) resource.Quantity { return resource.MustParse(s) }

func steps(low, high, step string) *resourceapi.CapacityRequestPolicy {
	r := &resourceapi.CapacityRequestPolicyRange{Min: ptr.To(q(low))}
	if high != "" {
		r.Max = ptr.To(q(high))
	}
	if step != "" {
		r.Step = ptr.To(q(step))
	}
	return &resourceapi.CapacityRequestPolicy{ValidRange: r}
}

func TestConsumption(t *testing.T) {
	values := &resourceapi.CapacityRequestPolicy{Default: ptr.To(q("20Gi")), ValidValues: []resource.Quantity{q("10Gi"), q("20Gi"), q("40Gi")}}
	for _, c := range []struct {
		name   string
		policy *resourceapi.CapacityRequestPolicy
		asked  string // "": nothing
		want   string
		wrong  bool // the device can't give it
	}{
		{name: "nothing asked takes all", want: "80Gi"},
		{name: "nothing asked takes the default", policy: values, want: "20Gi"},
		{name: "no policy takes what is asked", asked: "7Gi", want: "7Gi"},
		{name: "up to the next value", policy: values, asked: "11Gi", want: "20Gi"},
		{name: "exactly a value", policy: values, asked: "40Gi", want: "40Gi"},
		{name: "above the values", policy: values, asked: "41Gi", want: "41Gi", wrong: true},
		{name: "up to the minimum", policy: steps("8Gi", "", ""), asked: "1Gi", want: "8Gi"},
		{name: "above the minimum", policy: steps("8Gi", "", ""), asked: "9Gi", want: "9Gi"},
		{name: "up to a step", policy: steps("8Gi", "40Gi", "4Gi"), asked: "9Gi", want: "12Gi"},
		{name: "on a step", policy: steps("8Gi", "40Gi", "4Gi"), asked: "16Gi", want: "16Gi"},
		{name: "above the maximum", policy: steps("8Gi", "40Gi", "4Gi"), asked: "41Gi", want: "44Gi", wrong: true},
		{name: "steps of fractions", policy: steps("100m", "", "50m"), asked: "120m", want: "150m"},
		{name: "steps of fractions to a whole", policy: steps("500m", "", "500m"), asked: "600m", want: "1"},
		{name: "more than there is", asked: "81Gi", want: "81Gi", wrong: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := &resourceapi.Device{Name: "g", Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: q("80Gi"), RequestPolicy: c.policy}}}
			asked := quantities{}
			if c.asked != "" {
				asked["memory"] = q(c.asked)
			}
			got, err := consumption(asked, d)
			if err != nil {
				t.Fatal(err)
			}
			if amount := got["memory"]; amount.Cmp(q(c.want)) != 0 {
				t.Errorf("takes %s, want %s", amount.String(), c.want)
			}
			if problem := capacityProblem(asked, d); (problem != "") != c.wrong {
				t.Errorf("problem %q", problem)
			}
		})
	}
}

func TestConsumptionThatCannotBeCounted(t *testing.T) {
	for name, c := range map[string]struct {
		policy *resourceapi.CapacityRequestPolicy
		asked  string
	}{
		"past the range":         {steps("1", "", "2"), "10E"},
		"past thousandths":       {steps("100m", "", "100m"), "1.0001"},
		"a step of nothing":      {steps("1", "", "0"), "5"},
		"a minimum below zero":   {steps("-5", "", "1"), "1"},
		"a request below zero":   {nil, "-1"},
		"the next step past all": {steps("1", "", "4E"), "9E"},
	} {
		d := &resourceapi.Device{Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: q("80Gi"), RequestPolicy: c.policy}}}
		got, err := consumption(quantities{"memory": q(c.asked)}, d)
		amount := got["memory"]
		if !errors.Is(err, errNotRepresentable) {
			t.Errorf("%s: %s, %v", name, amount.String(), err)
		}
		if capacityProblem(quantities{"memory": q(c.asked)}, d) == "" {
			t.Errorf("%s: no problem", name)
		}
	}
	if got := capacityProblem(quantities{"bandwidth": q("1")}, &resourceapi.Device{}); got != "no capacity bandwidth" {
		t.Errorf("problem %q", got)
	}
}

func TestCapacityLeft(t *testing.T) {
	d := &resourceapi.Device{Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: q("80Gi")}, "cores": {Value: q("10")}}}
	takes := quantities{"memory": q("40Gi"), "cores": q("4")}
	if got := capacityLeft(takes, d, quantities{"memory": q("40Gi")}, quantities{"cores": q("6")}); got != "" {
		t.Errorf("just fits, yet %q", got)
	}
	if got := capacityLeft(takes, d, quantities{"cores": q("3")}, quantities{"cores": q("4")}); got != "cores: 3 left of 10, 4 wanted" {
		t.Errorf("%q", got)
	}
}

func TestCountersInWords(t *testing.T) {
	s := newSlice(counterSlice("n-1", "board", map[string]string{"memory": "80Gi", "slots": "7"}))
	c, problem := readCounters([]*slice{s})
	if problem != "" {
		t.Fatal(problem)
	}
	board := newSlice(aSlice("n-1", aGPU("g", "H100", consumes("board", map[string]string{"memory": "40Gi", "slots": "3"}), consumes("board", map[string]string{"slots": "1"}))))
	d := board.devices[0]
	if problem := c.bind(d); problem != "" {
		t.Fatal(problem)
	}
	left := amounts{c.total[0], c.total[1]}
	left.consume(d)
	if left.fits(d) || left.overdrawn() {
		t.Errorf("left %v", left)
	}
	if got := c.shortage(left, d); got != "board/slots: 3 < 4" {
		t.Errorf("%q", got)
	}
	left.consume(d)
	if !left.overdrawn() {
		t.Errorf("left %v is not overdrawn", left)
	}
	left.release(d)
	left.release(d)
	if got := c.word(0, left[0]); got != "80Gi" {
		t.Errorf("memory is %s after all is given back", got)
	}
}
