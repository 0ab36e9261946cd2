package softnic_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"ibverbx/softnic"
	"ibverbx/verbs"
)

// world is a link in virtual time, which the test advances.
type world struct {
	now  int64
	link *softnic.FaultLink
}

func newWorld(tb testing.TB, cfg softnic.FaultConfig) *world {
	tb.Helper()
	w := &world{}
	cfg.Now = func() int64 { return w.now }
	link, err := softnic.NewFaultLink(&cfg)
	must(tb, err)
	w.link = link
	return w
}

// settle runs the world until no event is due.
func (w *world) settle(tb testing.TB) {
	tb.Helper()
	for range 1_000_000 {
		next, pending := w.link.Step()
		if !pending {
			return
		}
		w.now = max(w.now, next)
	}
	tb.Fatal("the world does not come to rest")
}

// model is a sequential reference for a chain of requests on one RC QP: the requests, the final remote
// memory, and the result of each request.
type model struct {
	remote  []byte
	wrs     []verbs.SendWR
	results [][]byte // expected content of request i's local slot
	recvs   []verbs.WC
}

const (
	modelRemote = 16 * kib
	modelSlot   = 9 * kib
)

// step draws one request, with src as the addresses of its local slot.
func (m *model) step(t *rapid.T, slot verbs.SGE, remoteAddr uint64, rkey uint32, mem []byte) {
	i := len(m.wrs)
	op := verbs.Opcode(rapid.IntRange(0, 6).Draw(t, "op"))
	wr := verbs.SendWR{WRID: uint64(i), Opcode: op, RKey: rkey, Imm: uint32(i) * 0x01010101}
	if rapid.Bool().Draw(t, "signaled") {
		wr.Flags |= verbs.SendSignaled
	}
	if i > 0 && m.wrs[i-1].Opcode >= verbs.OpRDMARead {
		wr.Flags |= verbs.SendFence // READs are not ordered before later requests otherwise
	}
	n := rapid.IntRange(0, modelSlot).Draw(t, "length")
	at := rapid.IntRange(0, modelRemote-modelSlot).Draw(t, "at")
	if op >= verbs.OpAtomicCmpAndSwp {
		n, at = 8, at&^7
	}
	src := mem[i*modelSlot:][:n]
	for k := range src {
		src[k] = byte(i*31 + k*7)
	}
	wr.RemoteAddr = remoteAddr + uint64(at)
	wr.SetSGE(verbs.SGE{Addr: slot.Addr, Length: uint32(n), LKey: slot.LKey})
	result := bytes.Clone(src)
	dst := m.remote[at : at+n]
	switch op {
	case verbs.OpRDMAWrite:
		copy(dst, src)
	case verbs.OpRDMAWriteWithImm:
		copy(dst, src)
		m.recvs = append(m.recvs, verbs.WC{Opcode: verbs.WCRecvRDMAWithImm, ByteLen: uint32(n), Imm: wr.Imm, Flags: verbs.WCWithImm})
	case verbs.OpSend:
		m.recvs = append(m.recvs, verbs.WC{Opcode: verbs.WCRecv, ByteLen: uint32(n)})
	case verbs.OpSendWithImm:
		m.recvs = append(m.recvs, verbs.WC{Opcode: verbs.WCRecv, ByteLen: uint32(n), Imm: wr.Imm, Flags: verbs.WCWithImm})
	case verbs.OpRDMARead:
		copy(result, dst)
	case verbs.OpAtomicFetchAndAdd:
		wr.CompareAdd = rapid.Uint64().Draw(t, "add")
		old := binary.NativeEndian.Uint64(dst)
		binary.NativeEndian.PutUint64(result, old)
		binary.NativeEndian.PutUint64(dst, old+wr.CompareAdd)
	case verbs.OpAtomicCmpAndSwp:
		old := binary.NativeEndian.Uint64(dst)
		wr.CompareAdd, wr.Swap = old^uint64(i&1), uint64(i)<<32
		binary.NativeEndian.PutUint64(result, old)
		if wr.CompareAdd == old {
			binary.NativeEndian.PutUint64(dst, wr.Swap)
		}
	}
	m.wrs = append(m.wrs, wr)
	m.results = append(m.results, result)
}

// TestRCOverFaults checks the guarantee of RC as a property: whatever the network loses, duplicates,
// reorders, delays or corrupts, every request takes effect exactly once and in order, and its
// completion matches. It would expose an atomic executed twice, a WRITE repeated after a later one, or
// a READ that returns old data.
func TestRCOverFaults(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		imp := softnic.Impairment{
			Loss:      rapid.Float64Range(0, 0.08).Draw(rt, "loss"),
			Duplicate: rapid.Float64Range(0, 0.3).Draw(rt, "duplicate"),
			Reorder:   rapid.Float64Range(0, 0.5).Draw(rt, "reorder"),
			Corrupt:   rapid.Float64Range(0, 0.03).Draw(rt, "corrupt"),
			Delay:     time.Duration(rapid.IntRange(0, 20_000).Draw(rt, "delay")),
			Jitter:    time.Duration(rapid.IntRange(0, 20_000).Draw(rt, "jitter")),
		}
		if rapid.Bool().Draw(rt, "slow") {
			imp.Rate = 1e9
		}
		w := newWorld(t, softnic.FaultConfig{
			Seed: rapid.Uint64().Draw(rt, "seed"), Impairment: imp,
			Window: rapid.IntRange(1, 64).Draw(rt, "window"), Queue: rapid.IntRange(1, 64).Draw(rt, "queue"),
			ReadAhead:  rapid.SampledFrom([]int{0, 1, 2, 3, 7}).Draw(rt, "read ahead"),
			ProbeAfter: time.Duration(rapid.SampledFrom([]int{0, 10_000, 300_000}).Draw(rt, "probe after")),
		})
		faultyRun(t, rt, w)
	})
}

// faultyRun posts a drawn chain on one QP and compares everything with the model.
func faultyRun(t *testing.T, rt *rapid.T, w *world) {
	count := rapid.IntRange(1, 24).Draw(rt, "requests")
	a, ca, pa := plugConfig(rt, w.link, softnic.Config{MTU: verbs.MTU(rapid.IntRange(1, 5).Draw(rt, "mtu"))})
	b, cb, pb := plugConfig(rt, w.link, softnic.Config{})
	defer a.Close()
	defer b.Close()
	local, localMR := scratch(rt, pa, count*modelSlot)
	remote, remoteMR := scratch(rt, pb, modelRemote)
	inbox, inboxMR := scratch(rt, pb, count*modelSlot)
	r := &rig{tb: t, pa: pa, pb: pb}
	cqA, cqB := newCQ(t, ca, 64), newCQ(t, cb, 64)
	qa, qb := r.pair(verbs.RC, cqA, cqB, 32)

	m := &model{remote: bytes.Clone(remote.Bytes())}
	recvs := make([]verbs.RecvWR, count)
	for i := range count {
		slot := verbs.SGE{Addr: local.Addr() + uint64(i*modelSlot), LKey: localMR.LKey()}
		m.step(rt, slot, remote.Addr(), remoteMR.RKey(), local.Bytes())
		recvs[i].WRID = uint64(i)
		recvs[i].SetSGE(verbs.SGE{Addr: inbox.Addr() + uint64(i*modelSlot), Length: modelSlot, LKey: inboxMR.LKey()})
	}
	m.wrs[count-1].Flags |= verbs.SendSignaled
	late := rapid.IntRange(0, count).Draw(rt, "receives posted late")
	postRecv(rt, qb, recvs[:count-late])
	if n, err := qa.PostSend(m.wrs); n != count || err != nil {
		rt.Fatalf("PostSend = %d, %v", n, err)
	}
	// A late receiver causes RNR NAKs.
	for range 100 {
		next, pending := w.link.Step()
		if !pending {
			break
		}
		w.now = max(w.now, next)
	}
	postRecv(rt, qb, recvs[count-late:])
	w.settle(t)
	m.compare(rt, poll(rt, cqA), poll(rt, cqB), local.Bytes(), remote.Bytes(), inbox.Bytes())
}

// compare checks completions, receives and memory against the model.
func (m *model) compare(t *rapid.T, sent, received []verbs.WC, local, remote, inbox []byte) {
	k := 0
	for i, wr := range m.wrs {
		if wr.Flags&verbs.SendSignaled == 0 {
			continue
		}
		if k == len(sent) {
			t.Fatalf("completion of request %d is missing", i)
		}
		if wc := sent[k]; wc.WRID != uint64(i) || wc.Status != verbs.StatusSuccess {
			t.Fatalf("completion %d is wr_id %d, %v; want wr_id %d", k, wc.WRID, wc.Err(), i)
		}
		k++
	}
	if k != len(sent) {
		t.Fatalf("%d completions, want %d", len(sent), k)
	}
	if len(received) != len(m.recvs) {
		t.Fatalf("%d receives, want %d", len(received), len(m.recvs))
	}
	for i, want := range m.recvs {
		got := received[i]
		want.WRID, want.QPN = uint64(i), got.QPN
		if got != want {
			t.Fatalf("receive %d = %+v, want %+v", i, got, want)
		}
	}
	if !bytes.Equal(remote, m.remote) {
		t.Fatalf("remote memory differs from the model at byte %d", firstDifference(remote, m.remote))
	}
	inboxAt := 0
	for i, want := range m.results {
		if got := local[i*modelSlot:][:len(want)]; !bytes.Equal(got, want) {
			t.Fatalf("local buffer of request %d (%s) differs at byte %d", i, m.wrs[i].Opcode, firstDifference(got, want))
		}
		switch m.wrs[i].Opcode {
		case verbs.OpSend, verbs.OpSendWithImm:
			if got := inbox[inboxAt*modelSlot:][:len(want)]; !bytes.Equal(got, want) {
				t.Fatalf("message %d arrived damaged", i)
			}
			inboxAt++
		case verbs.OpRDMAWriteWithImm:
			inboxAt++
		default:
		}
	}
}

func firstDifference(a, b []byte) int {
	for i := range a {
		if a[i] != b[i] {
			return i
		}
	}
	return -1
}

// fataler is the common subset of testing.TB and rapid.T.
type fataler interface {
	Fatal(...any)
	Fatalf(string, ...any)
	Cleanup(func())
}

func plugConfig(t fataler, link softnic.Link, cfg softnic.Config) (*softnic.NIC, verbs.Context, verbs.PD) {
	nic, err := softnic.New(link, cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, err := nic.Open()
	if err != nil {
		t.Fatal(err)
	}
	pd, err := ctx.AllocPD()
	if err != nil {
		t.Fatal(err)
	}
	return nic, ctx, pd
}

// scratch is memory for one draw of a property test. When it is freed, its NIC is already closed and the
// registration with it.
func scratch(t fataler, pd verbs.PD, n int) (*verbs.Memory, verbs.MR) {
	m, err := verbs.AllocMemory(n, nil)
	if err != nil {
		t.Fatal(err)
	}
	mr, err := pd.RegisterMemory(m, verbs.AccessAll)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Free(); err != nil {
			t.Fatal(err)
		}
	})
	return m, mr
}

func postRecv(t fataler, q verbs.QP, wrs []verbs.RecvWR) {
	if n, err := q.PostRecv(wrs); n != len(wrs) || err != nil {
		t.Fatalf("PostRecv = %d, %v, want %d", n, err, len(wrs))
	}
}

// poll drains a CQ.
func poll(t fataler, cq verbs.CQ) []verbs.WC {
	var all []verbs.WC
	for buf := make([]verbs.WC, 16); ; {
		n, err := cq.Poll(buf)
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			return all
		}
		all = append(all, buf[:n]...)
	}
}

// TestFaultLinkRepeats: equal seeds and traffic produce equal faults.
func TestFaultLinkRepeats(t *testing.T) {
	run := func() (stats [2]softnic.FaultStats, nic softnic.Stats, end int64) {
		w := newWorld(t, softnic.FaultConfig{Seed: 7, Impairment: softnic.Impairment{
			Loss: 0.05, Duplicate: 0.1, Reorder: 0.2, Corrupt: 0.02, Delay: 1000, Jitter: 500, Rate: 1e9,
		}})
		r := &rig{tb: t}
		r.a, r.ca, r.pa = plugConfig(t, w.link, softnic.Config{Seed: 1})
		r.b, r.cb, r.pb = plugConfig(t, w.link, softnic.Config{Seed: 2})
		defer r.a.Close()
		defer r.b.Close()
		src, srcMR := memory(t, r.pa, 256*kib)
		dst, dstMR := memory(t, r.pb, 256*kib)
		cqA, cqB := newCQ(t, r.ca, 16), newCQ(t, r.cb, 16)
		qa, _ := r.pair(verbs.RC, cqA, cqB, 16)
		wr := verbs.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, RemoteAddr: dst.Addr(), RKey: dstMR.RKey()}
		wr.SetSGE(verbs.SGE{Addr: src.Addr(), Length: 256 * kib, LKey: srcMR.LKey()})
		if _, err := qa.PostSend([]verbs.SendWR{wr, wr, wr}); err != nil {
			t.Fatal(err)
		}
		w.settle(t)
		if got := poll(t, cqA); len(got) != 3 || got[2].Status != verbs.StatusSuccess {
			t.Fatalf("completions = %+v, want 3 successes", got)
		}
		return [2]softnic.FaultStats{w.link.Stats(r.a, r.b), w.link.Stats(r.b, r.a)}, r.a.Stats(), w.now
	}
	s1, n1, e1 := run()
	s2, n2, e2 := run()
	if s1 != s2 || n1 != n2 || e1 != e2 {
		t.Errorf("two runs of one seed differ:\n%+v %+v %d\n%+v %+v %d", s1, n1, e1, s2, n2, e2)
	}
	if f := s1[0]; f.Lost == 0 || f.Duplicated == 0 || f.Reordered == 0 || f.Corrupted == 0 {
		t.Errorf("a fault did not happen: %+v", f)
	}
}

// TestFaultLinkCut cuts one direction: the request fails after its retries, and after
// Restore a new connection works.
func TestFaultLinkCut(t *testing.T) {
	for _, way := range []string{"forth", "back"} {
		t.Run(way, func(t *testing.T) {
			w := newWorld(t, softnic.FaultConfig{})
			r := newRig(t, w.link)
			from, to := r.a, r.b
			if way == "back" {
				from, to = to, from
			}
			w.link.Cut(from, to)
			if got := r.write(w); got.Status != verbs.StatusRetryExcErr {
				t.Errorf("write over a cut link = %v, want %v", got.Status, verbs.StatusRetryExcErr)
			}
			// Each attempt waits for a timeout of 67 ms.
			if want := (1 + verbs.DefaultRetryCount) * verbs.AckTimeout(verbs.DefaultTimeout); w.now < int64(want) {
				t.Errorf("gave up after %v, want at least %v", time.Duration(w.now), want)
			}
			w.link.Restore(from, to)
			if got := r.write(w); got.Status != verbs.StatusSuccess {
				t.Errorf("write after Restore = %v", got.Err())
			}
		})
	}
}

// write executes one WRITE on a new connection and returns its completion.
func (r *rig) write(w *world) verbs.WC {
	r.tb.Helper()
	src, srcMR := memory(r.tb, r.pa, 64)
	dst, dstMR := memory(r.tb, r.pb, 64)
	cqA, cqB := newCQ(r.tb, r.ca, 4), newCQ(r.tb, r.cb, 4)
	qa, _ := r.pair(verbs.RC, cqA, cqB, 4)
	wr := verbs.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, RemoteAddr: dst.Addr(), RKey: dstMR.RKey()}
	wr.SetSGE(verbs.SGE{Addr: src.Addr(), Length: 64, LKey: srcMR.LKey()})
	if _, err := qa.PostSend([]verbs.SendWR{wr}); err != nil {
		r.tb.Fatal(err)
	}
	w.settle(r.tb)
	wcs := poll(r.tb, cqA)
	if len(wcs) != 1 {
		r.tb.Fatalf("%d completions, want 1", len(wcs))
	}
	return wcs[0]
}

// TestFaultLinkRate: in virtual time, a transfer takes exactly the time the wire needs, regardless of the
// machine.
func TestFaultLinkRate(t *testing.T) {
	w := newWorld(t, softnic.FaultConfig{Impairment: softnic.Impairment{Rate: 1e9, Delay: 10 * time.Microsecond}})
	r := newRig(t, w.link)
	src, srcMR := memory(t, r.pa, mib)
	dst, dstMR := memory(t, r.pb, mib)
	cqA, cqB := newCQ(t, r.ca, 4), newCQ(t, r.cb, 4)
	qa, _ := r.pair(verbs.RC, cqA, cqB, 4)
	wr := verbs.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, RemoteAddr: dst.Addr(), RKey: dstMR.RKey()}
	wr.SetSGE(verbs.SGE{Addr: src.Addr(), Length: mib, LKey: srcMR.LKey()})
	if _, err := qa.PostSend([]verbs.SendWR{wr}); err != nil {
		t.Fatal(err)
	}
	var done int64
	for done == 0 {
		next, pending := w.link.Step()
		if !pending {
			t.Fatal("the write does not complete")
		}
		w.now = next
		if len(poll(t, cqA)) > 0 {
			done = w.now
		}
	}
	packets := mib / 4096
	want := time.Duration(mib+packets*62)*time.Nanosecond + 20*time.Microsecond
	if got := time.Duration(done); got < want || got > want+want/20 {
		t.Errorf("1 MiB at 1 GB/s took %v, want %v and at most 5%% more", got, want)
	}
}

func TestImpairmentValidation(t *testing.T) {
	for _, imp := range []softnic.Impairment{
		{Loss: -0.1}, {Loss: 1.1}, {Duplicate: 2}, {Reorder: -1}, {Corrupt: 1.5}, {Delay: -1}, {Jitter: -1}, {Rate: -5},
	} {
		t.Run(fmt.Sprintf("%+v", imp), func(t *testing.T) {
			if _, err := softnic.NewFaultLink(&softnic.FaultConfig{Impairment: imp}); err == nil {
				t.Error("NewFaultLink accepted it")
			}
		})
	}
}

// TestCloseWithPacketsUnderWay: in real time, closing NICs with packets in flight does not leak the helper
// goroutine; goleak in TestMain checks.
func TestCloseWithPacketsUnderWay(t *testing.T) {
	link, err := softnic.NewFaultLink(&softnic.FaultConfig{Impairment: softnic.Impairment{Delay: time.Hour}})
	must(t, err)
	r := newRig(t, link)
	_, src := memory(t, r.pa, 64)
	_, dst := memory(t, r.pb, 64)
	qa, _ := r.pair(verbs.RC, newCQ(t, r.ca, 4), newCQ(t, r.cb, 4), 4)
	if _, err := qa.PostSend([]verbs.SendWR{writeWR(src, dst, 64)}); err != nil {
		t.Fatal(err)
	}
	must(t, r.a.Close())
	must(t, r.b.Close())
	if _, pending := link.Step(); pending {
		t.Error("a link without NICs has something pending")
	}
}
