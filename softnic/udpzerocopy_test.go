//go:build linux

package softnic

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"ibverbx/internal/roce"
	"ibverbx/verbs"
)

// TestUDPZeroCopy: packets reference program memory only if it stays valid until they are sent, and if that
// is faster.
func TestUDPZeroCopy(t *testing.T) {
	const long = 4096
	for _, tt := range []struct {
		name string
		cfg  UDPConfig
		segs []int
		not  bool // the payload is not in registered memory
		want bool
	}{
		{"long", UDPConfig{}, []int{long}, false, true},
		{"two pieces", UDPConfig{}, []int{long / 2, long / 2}, false, true},
		{"many pieces", UDPConfig{}, []int{long / 4, long / 4, long / 4, long / 4}, false, false},
		{"short", UDPConfig{}, []int{64}, false, false},
		{"empty", UDPConfig{}, nil, false, false},
		{"not registered", UDPConfig{}, []int{long}, true, false},
		{"full ICRC", UDPConfig{ICRC: ICRCFull}, []int{long}, false, false},
		{"captured", UDPConfig{Capture: &countPackets{}}, []int{long}, false, false},
		{"captured plain", UDPConfig{CapturePlain: &countPackets{}}, []int{long}, false, false},
		{"impaired", UDPConfig{Impairment: Impairment{Delay: 1}}, []int{long}, false, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			link, err := NewUDPLink(&tt.cfg)
			check(t, err)
			s := newNICRig(t, link, 64, Config{Addr: netip.MustParseAddr("127.0.0.66")})
			q := s.qp(verbs.UC, 4)
			join(t, q, q)
			w := q.core.udpNIC
			w.mu.Lock()
			defer w.mu.Unlock()
			p := packet{path: q.path, registered: !tt.not}
			p.Opcode, p.PKey = roce.UC|roce.OpSendOnly, roce.PKeyDefault
			for i, n := range tt.segs {
				p.segs[i] = s.mem.Bytes()[i*n:][:n]
				p.length += uint32(n)
				p.numSegs++
			}
			s.nic.udp.write(&p, false)
			if w.zeroCopy != tt.want {
				t.Errorf("packets refer to memory: %v, want %v", w.zeroCopy, tt.want)
			}
			w.flush()
			if w.zeroCopy {
				t.Error("packets that have left refer to memory")
			}
		})
	}
}

// TestUDPZeroCopyUntilPosted: once PostSend returns, the NIC has read the memory of UC requests, which
// complete then, even between Cork and Uncork.
func TestUDPZeroCopyUntilPosted(t *testing.T) {
	link, err := NewUDPLink(nil)
	check(t, err)
	all := stationsAt(t, link, 67, 2)
	a, b := all[0], all[1]
	qa, qb := a.qp(verbs.UC, 4), b.qp(verbs.UC, 4)
	join(t, qa, qb)
	const size = 32 << 10
	want := make([]byte, size)
	for i := range want {
		want[i] = byte(i*13 + i>>8)
	}
	var recv verbs.RecvWR
	recv.SetSGE(b.sge(0, size))
	for _, cork := range []bool{false, true} {
		clear(b.mem.Bytes())
		_, err = qb.PostRecv([]verbs.RecvWR{recv})
		check(t, err)
		mem, err := verbs.AllocMemory(size, nil)
		check(t, err)
		copy(mem.Bytes(), want)
		mr, err := a.pd.RegisterMemory(mem, 0)
		check(t, err)
		x := a.ctx.(verbs.Corker)
		if cork {
			x.Cork()
		}
		wr := verbs.SendWR{Opcode: verbs.OpSend, Flags: verbs.SendSignaled}
		wr.SetSGE(verbs.SGE{Addr: mr.Addr(), Length: size, LKey: mr.LKey()})
		post(t, qa, wr)
		clear(mem.Bytes())
		check(t, mr.Close())
		check(t, mem.Free())
		if cork {
			x.Uncork()
		}
		for deadline := time.Now().Add(time.Minute); len(b.poll()) == 0; {
			if time.Now().After(deadline) {
				t.Fatalf("cork %v: nothing has arrived after a minute", cork)
			}
		}
		if !bytes.Equal(b.mem.Bytes()[:size], want) {
			t.Errorf("cork %v: what arrived is not what was posted", cork)
		}
	}
}
