package failover_test

import (
	"fmt"
	"testing"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/reliable"
	"ibverbx/verbs"
)

// sides are the hosts whose device fails in a test.
var sides = [][]int{{0}, {1}, {0, 1}}

// fail makes the NICs of hosts on a rail fail, and recover makes them work again.
func (d *duo) fail(rail int, hosts []int) {
	for _, h := range hosts {
		d.hosts[h].NICs[rail].Fail()
	}
}

func (d *duo) recover(rail int, hosts []int) {
	for _, h := range hosts {
		d.hosts[h].NICs[rail].Recover()
	}
}

// exchangeRound writes the messages of another round, and compares the bytes.
func (d *duo) exchangeRound(seed uint64, local, remote *ibverbx.Region) {
	d.t.Helper()
	const messages = 8
	enginetest.Fill(local.Bytes(), seed)
	d.got = [2][]ibverbx.WC{}
	d.post(0, messages, uint32(local.Len()/messages), local, remote)
	d.until("all messages have arrived", func() bool { return len(d.got[0]) >= messages && len(d.got[1]) >= messages })
	d.check(messages, local, remote)
}

// TestRegisterWhileDeviceIsDead: memory registered while the device of a rail has failed is usable on the other
// rail at once, and on both when the device works again. Descriptions of the memory from before then stay
// valid: they leave the rail out, which must not fail a lane.
func TestRegisterWhileDeviceIsDead(t *testing.T) {
	enginetest.ForEachScheme(t, func(t *testing.T, scheme ibverbx.Scheme) {
		for rail := range 2 {
			for _, hosts := range sides {
				t.Run(fmt.Sprintf("rail=%d/hosts=%v", rail, hosts), func(t *testing.T) {
					d := newDuo(t, 2, ibverbx.Config{Lanes: 4, Scheme: scheme, FragmentSize: 4096})
					d.fail(rail, hosts)
					local, remote := d.hosts[0].Region(1<<18), d.hosts[1].Region(1<<18)
					old := remote.Remote()
					d.exchangeRound(1, local, remote)
					d.recover(rail, hosts)
					d.until("all lanes are back", d.allUp)
					d.exchangeRound(2, local, remote)
					for i, r := range []*ibverbx.Region{local, remote} {
						for k, key := range r.Remote().RKeys {
							if key == 0 {
								t.Errorf("host %d: no key on rail %d after its device has recovered", i, k)
							}
						}
					}
					fragments := d.hosts[0].QP.Stats().Rails[rail].Fragments
					if fragments == 0 {
						t.Errorf("rail %d carried no fragment after its device had recovered", rail)
					}
					d.got = [2][]ibverbx.WC{}
					wr := ibverbx.SendWR{Opcode: verbs.OpRDMARead, Flags: verbs.SendSignaled, Remote: old}
					wr.SetSGE(local.SGE(0, 1<<18))
					d.hosts[0].PostSend(wr)
					d.until("the READ has ended", func() bool { return len(d.got[0]) == 1 })
					if err := d.got[0][0].Err(); err != nil || !d.allUp() {
						t.Errorf("a READ of a description without a key for rail %d: %v, and all lanes are up: %v", rail, err, d.allUp())
					}
				})
			}
		}
	})
}

// TestConnectWhileDeviceIsDead: the device of a rail fails before NewCQ, before NewQP, before a receive, before Card or before
// Connect, at either end or both. Messages use the other rail. When the device works again, its lanes enter service.
func TestConnectWhileDeviceIsDead(t *testing.T) {
	plain := func(_ int, nic verbs.Context) verbs.Context { return nic }
	wrap, ud := &reliable.Config{Paths: 2}, &reliable.Config{Carrier: verbs.UD, Paths: 2}
	for name, wraps := range map[string][]*reliable.Config{"plain": {nil, nil}, "wrapped": {wrap, wrap}, "datagrams": {ud, ud}} {
		for _, shared := range []int{0, 256} {
			for rail := range 2 {
				for _, hosts := range sides {
					for _, when := range []string{"CQ", "QP", "receives", "card", "connect"} {
						if (shared != 0 && when != "CQ") || (wraps[0] != nil && (shared != 0 || rail == 0)) {
							continue // no new combination
						}
						t.Run(fmt.Sprintf("%s/shared=%d/rail=%d/hosts=%v/before=%s", name, shared, rail, hosts, when), func(t *testing.T) {
							cfg, queue := ibverbx.Config{Lanes: 4, FragmentSize: 4096}, ibverbx.CQConfig{SharedReceives: shared}
							d, taps := newStrangers(t, plain, wraps, cfg, queue)
							at := func(point string) {
								if point == when {
									d.fail(rail, hosts)
								}
							}
							at("CQ")
							for _, h := range d.hosts {
								h.QP = nil
								h.NewCQ(queue)
							}
							at("QP")
							for i, h := range d.hosts {
								cfg.Control, cfg.Now, cfg.Incarnation = taps[i], func() int64 { return d.now }, uint64(200+i)
								h.NewQP(cfg)
							}
							at("receives")
							for _, h := range d.hosts {
								region := h.Region(64)
								recv := ibverbx.RecvWR{WRID: 1000}
								recv.SetSGE(region.SGE(0, 64))
								h.PostRecv(recv)
							}
							d.step()
							at("card")
							var cards [2]*ibverbx.Card
							for i, h := range d.hosts {
								var err error
								cards[i], err = h.QP.Card()
								enginetest.Must(t, err)
							}
							at("connect")
							for i, h := range d.hosts {
								enginetest.Must(t, h.QP.Connect(enginetest.OverTheWire(t, cards[1-i])))
							}
							local, remote := d.hosts[0].Region(1<<18), d.hosts[1].Region(1<<18)
							d.exchangeRound(1, local, remote)
							d.recover(rail, hosts)
							d.until("all lanes are in service", d.allUp)
							d.exchangeRound(2, local, remote)
							if fragments := d.hosts[0].QP.Stats().Rails[rail].Fragments; fragments == 0 {
								t.Errorf("rail %d carried no fragment after its device had recovered", rail)
							}
						})
					}
				}
			}
		}
	}
}
