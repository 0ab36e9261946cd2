package traffic_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/internal/testslice"
	"ibverbx/reliable"
	"ibverbx/verbs"
)

// smallest is a device with minimal limits.
var smallest = enginetest.Limits{CQE: 32767, WR: 100, SGE: 1, Inline: verbs.ExplicitZero}

// TestDefaultCQFitsTheDevices: the default depth of a VirtualCQ is the smallest of its devices.
func TestDefaultCQFitsTheDevices(t *testing.T) {
	limits := []enginetest.Limits{{CQE: 50_000}, {CQE: 32767}}
	h := enginetest.NewRailsOver(t, enginetest.MemoryLinks(2), func(rail int, inner verbs.Context) verbs.Context { return limits[rail].Over(inner) })
	h.NewCQ(ibverbx.CQConfig{})
	h.NewQP(ibverbx.Config{})
	if _, err := h.Rails.NewCQ(ibverbx.CQConfig{Depth: 32768}); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("NewCQ of a depth that one device does not have = %v, want %v", err, verbs.ErrInvalid)
	}
}

// TestDefaultCQFollowsLanes: with the default depths, a VirtualQP has 1,024 lanes on one rail or two, on NICs that can resize a CQ (softnic) and
// on others. Only on the former can a second VirtualQP with as many lanes join the VirtualCQ.
func TestDefaultCQFollowsLanes(t *testing.T) {
	const lanes, size = 1024, 4 << 20
	cfg := ibverbx.Config{Lanes: lanes, FragmentSize: size / lanes}
	for _, rails := range []int{1, 2} {
		a, b := enginetest.NewPair(t, enginetest.MemoryLinks(rails), cfg)
		enginetest.Connect(t, a.NewQP(cfg), b.NewQP(cfg))
		local, remote := a.Region(size), b.Region(size)
		enginetest.Fill(local.Bytes(), 1)
		wr := ibverbx.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Remote: remote.Remote()}
		wr.SetSGE(local.SGE(0, size))
		a.PostSend(wr)
		for done := 0; done == 0; {
			done += pollOnce(t, a, 0)
		}
		if !bytes.Equal(local.Bytes(), remote.Bytes()) {
			t.Errorf("%d rails: byte %d differs", rails, enginetest.FirstDifference(local.Bytes(), remote.Bytes()))
		}
		checkLanes(t, a, lanes, size)
	}
	h := enginetest.NewRailsOver(t, enginetest.MemoryLinks(1), func(_ int, inner verbs.Context) verbs.Context { return enginetest.Limits{FixedCQ: true}.Over(inner) })
	h.NewCQ(ibverbx.CQConfig{})
	h.NewQP(cfg)
	if _, err := h.CQ.NewQP(cfg); !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), "set CQConfig.Depth") {
		t.Errorf("NewQP on a CQ that cannot grow = %v, want %v with the remedy", err, verbs.ErrInvalid)
	}
}

// TestTooManyLanesForDevice: the error names the device's limit and the need.
func TestTooManyLanesForDevice(t *testing.T) {
	h := enginetest.NewRailsOver(t, enginetest.MemoryLinks(1), func(_ int, inner verbs.Context) verbs.Context { return enginetest.Limits{CQE: 100_000}.Over(inner) })
	h.NewCQ(ibverbx.CQConfig{})
	_, err := h.CQ.NewQP(ibverbx.Config{Lanes: 1024})
	if !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), "196992") || !strings.Contains(err.Error(), "100000") {
		t.Errorf("NewQP with 1,024 lanes = %v, want %v that names 196992 and 100000", err, verbs.ErrInvalid)
	}
	h.NewQP(ibverbx.Config{Lanes: 500})
}

// TestSmallDevices: a VirtualQP with the default Config carries all requests over devices with one SGE, no
// inline data and small queues, over a mix of such devices and others, and over package reliable on devices
// without inline data. A slice has every second case.
func TestSmallDevices(t *testing.T) {
	noInline := enginetest.Limits{CQE: 32767, Inline: verbs.ExplicitZero}
	wrapped := func(t *testing.T, inner verbs.Context) verbs.Context {
		ctx, err := reliable.Wrap(noInline.Over(inner), reliable.Config{Paths: 2})
		enginetest.Must(t, err)
		t.Cleanup(func() { enginetest.Must(t, ctx.Close()) })
		return ctx
	}
	small := func(_ *testing.T, inner verbs.Context) verbs.Context { return smallest.Over(inner) }
	little := func(_ *testing.T, inner verbs.Context) verbs.Context {
		return enginetest.Limits{SGE: 1, Inline: 20}.Over(inner)
	}
	bare := func(_ *testing.T, inner verbs.Context) verbs.Context { return inner }
	type device = func(*testing.T, verbs.Context) verbs.Context
	i := 0
	for name, devices := range map[string][]device{
		"one": {small}, "two": {small, small}, "mixed": {bare, small, little}, "inline20": {little}, "wrapped": {wrapped, wrapped},
	} {
		for _, cfg := range []ibverbx.Config{{Lanes: 1}, {Lanes: 1, Control: enginetest.Deaf{}}, {Lanes: 5}, {Lanes: 5, MaxInline: verbs.ExplicitZero}} {
			for _, shared := range []int{0, 16} {
				for _, scheme := range enginetest.Schemes {
					if i++; !testslice.Of(t).AtMost(2).Has(i, 2) { // alternates with the scheme and with shared
						continue
					}
					cfg.Scheme, cfg.FragmentSize = scheme, 700
					t.Run(fmt.Sprintf("%s/%s/lanes=%d/track=%t/inline=%d/shared=%d", name, scheme, cfg.Lanes, cfg.Control != nil, cfg.MaxInline, shared), func(t *testing.T) {
						links := enginetest.MemoryLinks(len(devices))
						var hosts [2]*enginetest.Host
						for i := range hosts {
							hosts[i] = enginetest.NewRailsOver(t, links, func(rail int, inner verbs.Context) verbs.Context { return devices[rail](t, inner) })
							hosts[i].NewCQ(ibverbx.CQConfig{SharedReceives: shared})
							hosts[i].NewQP(cfg)
						}
						enginetest.Connect(t, hosts[0].QP, hosts[1].QP)
						carryAll(t, hosts[0], hosts[1])
					})
				}
			}
		}
	}
}

// carryAll sends requests of every kind from a to b and checks the received data.
func carryAll(t *testing.T, a, b *enginetest.Host) {
	t.Helper()
	const size, rounds = 8000, 30
	local, remote := a.Region(size+8), b.Region(size+8)
	for round := range rounds {
		enginetest.Fill(local.Bytes(), uint64(round))
		clear(remote.Bytes())
		wr := ibverbx.SendWR{WRID: 1, Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, Imm: uint32(round), Remote: remote.Remote()}
		wr.SetSGE(local.SGE(0, size))
		b.PostRecv(ibverbx.RecvWR{WRID: 2})
		a.PostSend(wr)
		sent, got := waitBoth(t, a, b)
		if sent.Err() != nil || got.Err() != nil || got.WRID != 2 || (got.Flags&ibverbx.WCHasImm != 0 && got.Imm != uint32(round)) || enginetest.FirstDifference(local.Bytes()[:size], remote.Bytes()[:size]) >= 0 {
			t.Fatalf("round %d: %v, %v, immediate %d; or bytes differ", round, sent.Err(), got.Err(), got.Imm)
		}
		recv := ibverbx.RecvWR{WRID: 3}
		recv.SetSGE(remote.SGE(size, 8))
		b.PostRecv(recv)
		send := ibverbx.SendWR{WRID: 4, Opcode: verbs.OpSend, Flags: verbs.SendSignaled}
		send.SetSGE(local.SGE(8, 8))
		a.PostSend(send)
		if sent, got = waitBoth(t, a, b); sent.Err() != nil || got.Err() != nil || enginetest.FirstDifference(local.Bytes()[8:16], remote.Bytes()[size:]) >= 0 {
			t.Fatalf("round %d: SEND: %v, %v; or bytes differ", round, sent.Err(), got.Err())
		}
		for i, op := range []verbs.Opcode{verbs.OpRDMARead, verbs.OpAtomicFetchAndAdd} {
			wr := ibverbx.SendWR{WRID: uint64(i), Opcode: op, Flags: verbs.SendSignaled, Remote: remote.Remote(), RemoteOffset: size, CompareAdd: 1}
			wr.SetSGE(local.SGE(16, 8))
			want := binary.NativeEndian.Uint64(remote.Bytes()[size:])
			a.PostSend(wr)
			if err := a.Wait(1)[0].Err(); err != nil || binary.NativeEndian.Uint64(local.Bytes()[16:]) != want {
				t.Fatalf("round %d: %s: %v, or bytes differ", round, op, err)
			}
		}
	}
}

// waitBoth waits for one completion of each host.
func waitBoth(t *testing.T, a, b *enginetest.Host) (sent, got ibverbx.WC) {
	t.Helper()
	var stall stallGuard
	for haveA, haveB := false, false; !haveA || !haveB; yield() {
		wcsA, wcsB := a.Poll(), b.Poll()
		if len(wcsA) > 0 {
			sent, haveA = wcsA[0], true
		}
		if len(wcsB) > 0 {
			got, haveB = wcsB[0], true
		}
		enginetest.Must(t, stall.step(len(wcsA)+len(wcsB) > 0))
	}
	return sent, got
}

// TestTooMuchForTheDevices: a request or receive that exceeds the SGE limit or the inline limit of the
// devices is refused with an error that names the limit, on one lane and on several.
func TestTooMuchForTheDevices(t *testing.T) {
	for _, lanes := range []int{1, 4} {
		t.Run(fmt.Sprintf("lanes=%d", lanes), func(t *testing.T) {
			limits := []enginetest.Limits{{SGE: 3, Inline: 40}, {SGE: 2}}
			links := enginetest.MemoryLinks(2)
			var hosts [2]*enginetest.Host
			for i := range hosts {
				hosts[i] = enginetest.NewRailsOver(t, links, func(rail int, inner verbs.Context) verbs.Context { return limits[rail].Over(inner) })
				hosts[i].NewCQ(ibverbx.CQConfig{})
				hosts[i].NewQP(ibverbx.Config{Lanes: lanes})
			}
			enginetest.Connect(t, hosts[0].QP, hosts[1].QP)
			local, remote := hosts[0].Region(4096), hosts[1].Region(4096)
			post := func(flags verbs.SendFlags, n uint32, sges int) error {
				wr := ibverbx.SendWR{Opcode: verbs.OpRDMAWrite, Flags: flags | verbs.SendSignaled, Remote: remote.Remote()}
				for i := range sges {
					wr.SGE[i] = local.SGE(0, n)
				}
				wr.NumSGE = uint8(sges)
				_, err := hosts[0].QP.PostSend([]ibverbx.SendWR{wr})
				return err
			}
			enginetest.Must(t, post(0, 100, 2))
			enginetest.Must(t, post(verbs.SendInline, 32, 1))
			for _, wc := range hosts[0].Wait(2) {
				enginetest.Must(t, wc.Err())
			}
			if err := post(0, 100, 3); !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), "3 SGEs, the devices allow 2") {
				t.Errorf("PostSend of 3 SGEs = %v", err)
			}
			if err := post(verbs.SendInline, 33, 1); !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), "33 inline bytes, the lanes take 32") {
				t.Errorf("PostSend of 33 inline bytes = %v", err)
			}
			recv := ibverbx.RecvWR{}
			recv.SetSGE(local.SGE(0, 8), local.SGE(8, 8), local.SGE(16, 8))
			if n, err := hosts[0].QP.PostRecv([]ibverbx.RecvWR{recv}); n != 0 || !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), "3 SGEs, the devices allow 2") {
				t.Errorf("PostRecv of 3 SGEs = %d, %v", n, err)
			}
		})
	}
}

// TestAskedInlineIsNotLowered: a MaxInline that a device does not have is an error, and not lowered.
func TestAskedInlineIsNotLowered(t *testing.T) {
	h := enginetest.NewRailsOver(t, enginetest.MemoryLinks(1), func(_ int, inner verbs.Context) verbs.Context { return smallest.Over(inner) })
	h.NewCQ(ibverbx.CQConfig{})
	if _, err := h.CQ.NewQP(ibverbx.Config{MaxInline: 16}); !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), "MaxInline") {
		t.Errorf("NewQP with MaxInline 16 on a device without inline bytes = %v, want %v that names MaxInline", err, verbs.ErrInvalid)
	}
}

// shortMessages is a device that carries messages of at most 4 KiB.
type shortMessages struct{ verbs.Context }

func (c shortMessages) QueryDevice() (verbs.DeviceAttr, error) {
	a, err := c.Context.QueryDevice()
	a.MaxMsgSize = 4096
	return a, err
}

// TestLongestMessageOfSingleLane: a single lane without failover accepts requests up to the longest message of both devices, and
// refuses longer ones.
func TestLongestMessageOfSingleLane(t *testing.T) {
	links, cfg := enginetest.MemoryLinks(1), ibverbx.Config{Lanes: 1}
	host := func(wrap func(int, verbs.Context) verbs.Context) *enginetest.Host {
		h := enginetest.NewRailsOver(t, links, wrap)
		h.NewCQ(ibverbx.CQConfig{})
		h.NewQP(cfg)
		return h
	}
	a := host(func(_ int, inner verbs.Context) verbs.Context { return inner })
	b := host(func(_ int, inner verbs.Context) verbs.Context { return shortMessages{inner} })
	enginetest.Connect(t, a.QP, b.QP)
	for _, ends := range [][2]*enginetest.Host{{a, b}, {b, a}} {
		from, local, remote := ends[0], ends[0].Region(8192), ends[1].Region(8192)
		for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead} {
			wr := ibverbx.SendWR{Opcode: op, Flags: verbs.SendSignaled, Remote: remote.Remote()}
			wr.SetSGE(local.SGE(0, 4096))
			from.PostSend(wr)
			enginetest.Must(t, from.Wait(1)[0].Err())
			wr.SetSGE(local.SGE(0, 4097))
			if n, err := from.QP.PostSend([]ibverbx.SendWR{wr}); n != 0 || !errors.Is(err, verbs.ErrInvalid) {
				t.Errorf("%v of 4,097 bytes = %d, %v; want 0, %v", op, n, err, verbs.ErrInvalid)
			}
		}
	}
}
