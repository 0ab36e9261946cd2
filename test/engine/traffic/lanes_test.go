package traffic_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/softnic"
	"ibverbx/verbs"
	"ibverbx/verbs/verbstest"
)

// TestThousandLanes: 1,024 lanes over two rails carry a message in 4 KiB fragments, at least one per lane;
// then a READ fetches it. The wires have a finite rate, so a premature notification would expose missing
// bytes.
func TestThousandLanes(t *testing.T) {
	for _, scheme := range enginetest.Schemes {
		t.Run(scheme.String()+"/memory", func(t *testing.T) { thousandLanes(t, newStill(2), scheme) })
		t.Run(scheme.String()+"/wires", func(t *testing.T) {
			wire := softnic.FaultConfig{Window: 1 << 16, Queue: 1 << 16, Impairment: softnic.Impairment{Rate: 1e9, Delay: time.Microsecond}}
			thousandLanes(t, newWires(t, wire, wire), scheme)
		})
	}
}

func thousandLanes(t *testing.T, w *wires, scheme ibverbx.Scheme) {
	t.Helper()
	const lanes, fragment, size = 1024, 4096, 6<<20 + 123
	a, b := enginetest.NewPair(t, w.links, ibverbx.Config{
		Lanes: lanes, Scheme: scheme, FragmentSize: fragment, LaneDepth: 16, NotifyDepth: 8, RecvDepth: 16, SendDepth: 16,
	})
	local, remote := a.Region(size), b.Region(size)
	for round := range 3 {
		enginetest.Stamp(local.Bytes(), round, round)
		clear(remote.Bytes())
		b.PostRecv(ibverbx.RecvWR{WRID: uint64(round)})
		wr := ibverbx.SendWR{WRID: uint64(round), Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, Imm: uint32(round) * 7, Remote: remote.Remote()}
		wr.SetSGE(local.SGE(0, size))
		a.PostSend(wr)
		p := stallGuard{limit: steps}
		for delivered, done := 0, 0; delivered == 0 || done == 0; w.step() {
			done += pollOnce(t, a, round)
			for _, wc := range b.Poll() {
				checkNotification(t, scheme, wc, round, round, size)
				if !bytes.Equal(remote.Bytes(), local.Bytes()) {
					t.Fatalf("round %d was delivered before byte %d", round, enginetest.FirstDifference(remote.Bytes(), local.Bytes()))
				}
				delivered++
			}
			if err := p.step(false); err != nil {
				t.Fatalf("%v: delivered %d, completed %d; %v, %v", err, delivered, done, a.QP.Err(), b.QP.Err())
			}
		}
	}
	checkLanes(t, a, lanes, 3*size)
	readBack(t, w, a, local, remote)
}

// checkLanes fails unless every data lane carried data, want bytes in total.
func checkLanes(t *testing.T, h *enginetest.Host, lanes int, want uint64) {
	t.Helper()
	var used int
	var sum uint64
	for _, s := range h.QP.Stats().Lanes {
		if s.Role == "data" {
			if sum += s.Bytes; s.Bytes > 0 {
				used++
			}
		}
	}
	if used != lanes || sum != want {
		t.Errorf("%d lanes carried %d bytes, want %d and %d", used, sum, lanes, want)
	}
}

// readBack fetches the remote region into the local one.
func readBack(t *testing.T, w *wires, h *enginetest.Host, local, remote *ibverbx.Region) {
	t.Helper()
	clear(local.Bytes())
	wr := ibverbx.SendWR{WRID: 99, Opcode: verbs.OpRDMARead, Flags: verbs.SendSignaled, Remote: remote.Remote()}
	wr.SetSGE(local.SGE(0, uint32(local.Len())))
	h.PostSend(wr)
	p := stallGuard{limit: steps}
	for done := 0; done == 0; w.step() {
		done = pollOnce(t, h, 99)
		enginetest.Must(t, p.step(false))
	}
	if !bytes.Equal(local.Bytes(), remote.Bytes()) {
		t.Fatalf("byte %d of the READ is wrong", enginetest.FirstDifference(local.Bytes(), remote.Bytes()))
	}
}

// TestManySmallMessagesOnManyLanes: messages of one fragment each, on many lanes, are notified in
// order.
func TestManySmallMessagesOnManyLanes(t *testing.T) {
	const lanes, messages = 256, 2000
	for _, scheme := range enginetest.Schemes {
		for _, rails := range []int{1, 2} {
			t.Run(fmt.Sprintf("%s/rails=%d", scheme, rails), func(t *testing.T) {
				a, b := enginetest.NewPair(t, enginetest.MemoryLinks(rails), ibverbx.Config{Lanes: lanes, Scheme: scheme, LaneDepth: 16, NotifyDepth: 8, RecvDepth: messages})
				local, remote := a.Region(64*messages), b.Region(64*messages)
				enginetest.Stamp(local.Bytes(), 1, 1)
				recvs := make([]ibverbx.RecvWR, messages)
				for i := range recvs {
					recvs[i].WRID = uint64(i)
				}
				b.PostRecv(recvs...)
				var p stallGuard
				for posted, delivered, done := 0, 0, 0; delivered < messages || done < messages; {
					if posted < messages {
						wr := ibverbx.SendWR{WRID: uint64(posted), Opcode: verbs.OpRDMAWriteWithImm, Flags: verbs.SendSignaled, Imm: uint32(posted) * 7, Remote: remote.Remote(), RemoteOffset: uint64(64 * posted)}
						wr.SetSGE(local.SGE(uint64(64*posted), 64))
						n, err := a.QP.PostSend([]ibverbx.SendWR{wr})
						if posted += n; n == 0 && err != verbs.ErrQueueFull { //nolint:errorlint // it must not be wrapped
							t.Fatalf("PostSend = %d, %v; want 1 or %v", n, err, verbs.ErrQueueFull)
						}
					}
					done += pollOnce(t, a, done)
					for _, wc := range b.Poll() {
						checkNotification(t, scheme, wc, delivered, delivered, 64)
						if at := 64 * delivered; !bytes.Equal(remote.Bytes()[at:at+64], local.Bytes()[at:at+64]) {
							t.Fatalf("message %d was delivered before its bytes", delivered)
						}
						delivered++
					}
					if err := p.step(false); err != nil {
						t.Fatalf("%v: %d delivered, %d completed of %d", err, delivered, done, messages)
					}
				}
			})
		}
	}
}

// TestNoCutOnCallersCore: if all NICs run on the caller's core, only requests above 1 MiB are fragmented. A
// NIC on another core, a fragment size or virtual time changes that.
func TestNoCutOnCallersCore(t *testing.T) {
	const size = 4 << 20
	still := &softnic.MemoryConfig{Now: func() int64 { return 0 }}
	wire, err := softnic.NewFaultLink(&softnic.FaultConfig{Seed: 1})
	enginetest.Must(t, err)
	for _, tt := range []struct {
		name  string
		links []softnic.Link
		cut   uint32
		want  map[uint32]uint64 // fragments by length
	}{
		{"memory", enginetest.MemoryLinks(2), 0, map[uint32]uint64{8: 1, 64 << 10: 1, 1 << 20: 1, 1<<20 + 1: 2, size: 4}},
		{"fragment size", enginetest.MemoryLinks(2), 64 << 10, map[uint32]uint64{64 << 10: 1, 1 << 20: 16}},
		{"memory and a wire", []softnic.Link{softnic.NewMemoryLink(nil), wire}, 0, map[uint32]uint64{8: 1, 64 << 10: 4, 1 << 20: 8}},
		{"virtual time", []softnic.Link{softnic.NewMemoryLink(still), softnic.NewMemoryLink(still)}, 0, map[uint32]uint64{8: 1, 64 << 10: 4, 1 << 20: 8}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, b := onCaller(t, tt.links, tt.cut), onCaller(t, tt.links, tt.cut)
			enginetest.Connect(t, a.QP, b.QP)
			local, remote := a.Region(size), b.Region(size)
			for length, want := range tt.want {
				before := a.QP.Stats().Fragments
				wr := ibverbx.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Remote: remote.Remote()}
				wr.SetSGE(local.SGE(0, length))
				a.PostSend(wr)
				if got := a.QP.Stats().Fragments - before; got != want {
					t.Errorf("%d bytes left as %d fragments, want %d", length, got, want)
				}
				a.Wait(1)
			}
		})
	}
}

// TestNoCutOnDevices: where devices copy their own memory, a request with device memory at either end is not
// fragmented. Host memory, a NIC without that trait, or a fragment size changes that. Virtual time does not.
func TestNoCutOnDevices(t *testing.T) {
	const size = 16 << 20
	device := new(verbstest.MemoryDevice)
	still := &softnic.MemoryConfig{Now: func() int64 { return 0 }}
	wire, err := softnic.NewFaultLink(&softnic.FaultConfig{Seed: 1})
	enginetest.Must(t, err)
	for _, tt := range []struct {
		name  string
		links []softnic.Link
		cut   uint32
		// want is the number of fragments of a request: within the device, to it, from it, on the host, and
		// with both kinds of memory.
		want [5]uint64
	}{
		{"memory", enginetest.MemoryLinks(1), 0, [5]uint64{1, 1, 1, 16, 1}},
		{"virtual time", []softnic.Link{softnic.NewMemoryLink(still)}, 0, [5]uint64{1, 1, 1, 16, 1}},
		{"fragment size", enginetest.MemoryLinks(1), 4 << 20, [5]uint64{4, 4, 4, 4, 4}},
		{"memory and a wire", []softnic.Link{softnic.NewMemoryLink(nil), wire}, 0, [5]uint64{16, 16, 16, 16, 16}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, b := onCaller(t, tt.links, tt.cut), onCaller(t, tt.links, tt.cut)
			enginetest.Connect(t, a.QP, b.QP)
			on := func(h *enginetest.Host) *ibverbx.Region {
				m, err := device.Alloc(size)
				enginetest.Must(t, err)
				t.Cleanup(func() { enginetest.Must(t, m.Free()) })
				r, err := h.Rails.Register(m, verbs.AccessAll)
				enginetest.Must(t, err)
				t.Cleanup(func() { enginetest.Must(t, r.Close()) })
				return r
			}
			local, remote, hostLocal, hostRemote := on(a), on(b), a.Region(size), b.Region(size)
			for i, c := range []struct {
				to   *ibverbx.Region
				from []ibverbx.SGE
			}{
				{remote, []ibverbx.SGE{local.SGE(0, size)}},
				{remote, []ibverbx.SGE{hostLocal.SGE(0, size)}},
				{hostRemote, []ibverbx.SGE{local.SGE(0, size)}},
				{hostRemote, []ibverbx.SGE{hostLocal.SGE(0, size)}},
				{hostRemote, []ibverbx.SGE{hostLocal.SGE(0, size/2), local.SGE(0, size/2)}},
			} {
				for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead} {
					before := a.QP.Stats().Fragments
					wr := ibverbx.SendWR{Opcode: op, Flags: verbs.SendSignaled, Remote: c.to.Remote()}
					wr.SetSGE(c.from...)
					a.PostSend(wr)
					a.Wait(1)
					if got := a.QP.Stats().Fragments - before; got != tt.want[i] {
						t.Errorf("%s, case %d: %d fragments, want %d", op, i, got, tt.want[i])
					}
				}
			}
		})
	}
}

// TestRunOnCallersCore: if all NICs run on the caller's core, long requests of one post share a lane, and the
// next post uses the next lane. On a wire, every lane gets its share.
func TestRunOnCallersCore(t *testing.T) {
	const size, count = 64 << 10, 4
	wire, err := softnic.NewFaultLink(&softnic.FaultConfig{Seed: 1})
	enginetest.Must(t, err)
	for _, tt := range []struct {
		name  string
		links []softnic.Link
		want  uint64 // lanes that a post uses
	}{{"memory", enginetest.MemoryLinks(2), 1}, {"wire", []softnic.Link{wire}, count}} {
		t.Run(tt.name, func(t *testing.T) {
			a, b := onCaller(t, tt.links, size), onCaller(t, tt.links, size)
			enginetest.Connect(t, a.QP, b.QP)
			wrs := make([]ibverbx.SendWR, count)
			for i := range wrs {
				wrs[i] = ibverbx.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Remote: b.Region(size).Remote()}
				wrs[i].SetSGE(a.Region(size).SGE(0, size))
			}
			for post := range uint64(2) {
				a.PostSend(wrs...)
				used := uint64(0)
				for _, l := range a.QP.Stats().Lanes {
					if l.Doorbells > 0 {
						used++
					}
				}
				if want := tt.want * (post + 1); used != want {
					t.Errorf("%d posts used %d lanes, want %d", post+1, used, want)
				}
				a.Wait(count)
			}
		})
	}
}

// onCaller returns a host whose NICs report where they run.
func onCaller(t *testing.T, links []softnic.Link, cut uint32) *enginetest.Host {
	t.Helper()
	var rails []ibverbx.RailConfig
	for _, link := range links {
		nic, err := softnic.New(link, softnic.Config{})
		enginetest.Must(t, err)
		t.Cleanup(func() { enginetest.Must(t, nic.Close()) })
		ctx, err := nic.Open()
		enginetest.Must(t, err)
		rails = append(rails, ibverbx.RailConfig{Context: ctx})
	}
	h := enginetest.NewRailsOn(t, rails...)
	h.NewCQ(ibverbx.CQConfig{Waker: verbs.NewWaker()})
	h.NewQP(ibverbx.Config{Lanes: 8, FragmentSize: cut})
	return h
}
