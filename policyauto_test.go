package ibverbx_test

import (
	"testing"

	"ibverbx"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// fastPort is a context whose ports say how fast they are.
type fastPort struct {
	verbs.Context
	mbps uint32
}

func (f fastPort) QueryPort(port int) (verbs.PortAttr, error) {
	attr, err := f.Context.QueryPort(port)
	attr.SpeedMbps = f.mbps
	return attr, err
}

// TestAutoPolicy: lanes in turn where all ports are alike, by what they have carried where
// they are not, and what the user says in any case.
func TestAutoPolicy(t *testing.T) {
	for _, tt := range []struct {
		speeds []uint32
		asked  ibverbx.Policy
		want   ibverbx.Policy
	}{
		{[]uint32{0, 0}, ibverbx.AutoPolicy, ibverbx.RoundRobin},
		{[]uint32{100_000}, ibverbx.AutoPolicy, ibverbx.RoundRobin},
		{[]uint32{400_000, 400_000}, ibverbx.AutoPolicy, ibverbx.RoundRobin},
		{[]uint32{400_000, 100_000}, ibverbx.AutoPolicy, ibverbx.TwoChoices},
		{[]uint32{400_000, 400_000, 0}, ibverbx.AutoPolicy, ibverbx.TwoChoices},
		{[]uint32{400_000, 100_000}, ibverbx.RoundRobin, ibverbx.RoundRobin},
		{[]uint32{100_000, 100_000}, ibverbx.LeastBytes, ibverbx.LeastBytes},
	} {
		link := softnic.NewMemoryLink(nil)
		var cfgs []ibverbx.RailConfig
		for _, mbps := range tt.speeds {
			nic, err := softnic.New(link, softnic.Config{})
			must(t, err)
			t.Cleanup(func() { must(t, nic.Close()) })
			ctx, err := nic.Open()
			must(t, err)
			cfgs = append(cfgs, ibverbx.RailConfig{Context: fastPort{ctx, mbps}})
		}
		rails, err := ibverbx.NewRails(cfgs...)
		must(t, err)
		cq, err := rails.NewCQ(ibverbx.CQConfig{})
		must(t, err)
		qp, err := cq.NewQP(ibverbx.Config{Policy: tt.asked})
		must(t, err)
		if got := ibverbx.PolicyInUse(qp); got != tt.want {
			t.Errorf("policy %v on ports of %v Mb/s is %v, want %v", tt.asked, tt.speeds, got, tt.want)
		}
		must(t, qp.Close())
		must(t, cq.Close())
		must(t, rails.Close())
	}
}
