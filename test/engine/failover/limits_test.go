package failover_test

import (
	"fmt"
	"testing"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/reliable"
	"ibverbx/verbs"
)

// TestSmallDevicesFailOver: on devices with one SGE, no inline data and small queues, a lane dies and
// recovers, and a NIC fails and recovers. Every message arrives exactly once. Package reliable needs the
// SGEs, so wrapped devices only lack inline data.
func TestSmallDevicesFailOver(t *testing.T) {
	small := enginetest.Limits{CQE: 32767, WR: 100, SGE: 1, Inline: verbs.ExplicitZero}
	plain := enginetest.Limits{CQE: 32767, Inline: verbs.ExplicitZero}
	wrap := &reliable.Config{Paths: 2}
	for name, c := range map[string]struct {
		limits []enginetest.Limits
		wraps  []*reliable.Config
	}{
		"small":   {[]enginetest.Limits{small, small}, make([]*reliable.Config, 2)},
		"mixed":   {[]enginetest.Limits{{}, small}, make([]*reliable.Config, 2)},
		"wrapped": {[]enginetest.Limits{plain, plain}, []*reliable.Config{wrap, wrap}},
		"half":    {[]enginetest.Limits{small, plain}, []*reliable.Config{nil, wrap}},
	} {
		for _, lanes := range []int{1, 4} {
			enginetest.ForEachScheme(t, func(t *testing.T, scheme ibverbx.Scheme) {
				t.Run(fmt.Sprintf("%s/lanes=%d", name, lanes), func(t *testing.T) {
					d, _ := newDuoWithin(t, c.limits, c.wraps, ibverbx.Config{Lanes: lanes, Scheme: scheme, FragmentSize: 1000}, ibverbx.CQConfig{})
					const messages, size = 48, 5000
					local, remote := d.hosts[0].Region(messages*size), d.hosts[1].Region(messages*size)
					enginetest.Fill(local.Bytes(), 1)
					d.post(0, 16, size, local, remote)
					d.step()
					d.kill(0, lanes-1)
					d.until("all lanes are back", d.allUp)
					d.post(16, 16, size, local, remote)
					d.step()
					d.hosts[0].NICs[0].Fail()
					d.post(32, 16, size, local, remote)
					if lanes == 1 { // failover needs another lane
						d.step()
						d.hosts[0].NICs[0].Recover()
					}
					d.until("all complete", func() bool { return len(d.got[0]) == messages && len(d.got[1]) == messages })
					d.check(messages, local, remote)
					d.hosts[0].NICs[0].Recover()
					d.until("the NIC is back", d.allUp)
				})
			})
		}
	}
}
