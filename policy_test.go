package ibverbx_test

import (
	"testing"

	"ibverbx"
	"ibverbx/internal/rig"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// fastPort is a context whose ports report a speed.
type fastPort struct {
	verbs.Context
	mbps uint32
}

func (f fastPort) QueryPort(port int) (verbs.PortAttr, error) {
	attr, err := f.Context.QueryPort(port)
	attr.SpeedMbps = f.mbps
	return attr, err
}

// TestAutoPolicy: AutoPolicy is RoundRobin if all ports have one speed and TwoChoices if not. An
// explicit policy is kept.
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
			rig.Must(t, err)
			t.Cleanup(func() { rig.Must(t, nic.Close()) })
			ctx, err := nic.Open()
			rig.Must(t, err)
			cfgs = append(cfgs, ibverbx.RailConfig{Context: fastPort{ctx, mbps}})
		}
		rails, err := ibverbx.NewRails(cfgs...)
		rig.Must(t, err)
		cq, err := rails.NewCQ(ibverbx.CQConfig{})
		rig.Must(t, err)
		qp, err := cq.NewQP(ibverbx.Config{Policy: tt.asked})
		rig.Must(t, err)
		if got := ibverbx.PolicyInUse(qp); got != tt.want {
			t.Errorf("policy %v on ports of %v Mb/s is %v, want %v", tt.asked, tt.speeds, got, tt.want)
		}
		rig.Must(t, qp.Close())
		rig.Must(t, cq.Close())
		rig.Must(t, rails.Close())
	}
}
