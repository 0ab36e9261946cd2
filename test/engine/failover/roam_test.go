package failover_test

import (
	"fmt"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/verbs"
)

// outages lose or restore a rail: silently, with its port or with its NIC, at either host.
var outages = map[string]func(d *duo, rail int, lost bool){
	"cut":    (*duo).cut,
	"port 0": func(d *duo, rail int, lost bool) { d.hosts[0].NICs[rail].SetPort(!lost) },
	"port 1": func(d *duo, rail int, lost bool) { d.hosts[1].NICs[rail].SetPort(!lost) },
	"NIC 0":  func(d *duo, rail int, lost bool) { d.failNIC(0, rail, lost) },
	"NIC 1":  func(d *duo, rail int, lost bool) { d.failNIC(1, rail, lost) },
}

func (d *duo) cut(rail int, lost bool) {
	a, b := d.hosts[0].NICs[rail], d.hosts[1].NICs[rail]
	if lost {
		d.links[rail].Cut(a, b)
		d.links[rail].Cut(b, a)
	} else {
		d.links[rail].Restore(a, b)
		d.links[rail].Restore(b, a)
	}
}

func (d *duo) failNIC(host, rail int, lost bool) {
	if lost {
		d.hosts[host].NICs[rail].Fail()
	} else {
		d.hosts[host].NICs[rail].Recover()
	}
}

// TestLastLaneMoves: the rails of all data lanes are lost. The lanes move to a rail that has none before a
// deadline of 3 s, and return when their rails do. Then atomics, which wait for the message lane's rail, continue.
func TestLastLaneMoves(t *testing.T) {
	enginetest.ForEachScheme(t, func(t *testing.T, scheme ibverbx.Scheme) {
		for name, outage := range outages {
			for _, lanes := range []int{1, 2} { // on one rail more
				if lanes == 2 && name != "cut" {
					continue
				}
				t.Run(fmt.Sprintf("%s/lanes=%d", name, lanes), func(t *testing.T) {
					d := newDuo(t, lanes+1, ibverbx.Config{Lanes: lanes, Scheme: scheme, Deadline: 3 * time.Second})
					d.tick = int64(100 * time.Microsecond)
					const messages, size = 24, 8192
					local, remote := d.hosts[0].Region(messages*size), d.hosts[1].Region(messages*size)
					enginetest.Fill(local.Bytes(), 8)
					move := func(first, count int) {
						t.Helper()
						d.post(first, count, size, local, remote)
						d.until("all complete", func() bool {
							return (len(d.got[0]) == first+count && len(d.got[1]) == first+count) || d.hosts[0].QP.Err() != nil || d.hosts[1].QP.Err() != nil
						})
						for _, h := range d.hosts {
							enginetest.Must(t, h.QP.Err())
						}
					}
					d.post(0, 8, size, local, remote)
					d.step()
					for rail := range lanes {
						outage(d, rail, true)
					}
					move(8, 8)
					for rail := range lanes {
						outage(d, rail, false)
					}
					move(16, 8)
					d.check(messages, local, remote)
					d.until("all lanes are at home", func() bool { return d.allUp() && d.hosts[0].QP.Stats().Lanes[0].Rail == 0 })
					add := ibverbx.SendWR{WRID: messages, Opcode: verbs.OpAtomicFetchAndAdd, Flags: verbs.SendSignaled, Remote: remote.Remote()}
					add.SetSGE(local.SGE(0, 8))
					d.hosts[0].PostSend(add)
					d.until("the atomic has ended", func() bool { return len(d.got[0]) > messages })
					enginetest.Must(t, d.got[0][messages].Err())
				})
			}
		}
	})
}
