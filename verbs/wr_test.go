package verbs_test

import (
	"math"
	"testing"
	"unsafe"

	"ibverbx/verbs"
)

func TestSetSGE(t *testing.T) {
	sges := []verbs.SGE{{1, 10, 100}, {2, 20, 200}, {3, 30, 300}, {4, 40, 400}}
	var send verbs.SendWR
	var recv verbs.RecvWR
	var want uint64
	for n := range len(sges) + 1 {
		send.SetSGE(sges[:n]...)
		recv.SetSGE(sges[:n]...)
		if int(send.NumSGE) != n || int(recv.NumSGE) != n {
			t.Fatalf("after SetSGE of %d elements NumSGE = %d (send), %d (receive)", n, send.NumSGE, recv.NumSGE)
		}
		if send.Length() != want || recv.Length() != want {
			t.Fatalf("Length of %d elements = %d (send), %d (receive), want %d", n, send.Length(), recv.Length(), want)
		}
		for i := range n {
			if send.SGE[i] != sges[i] || recv.SGE[i] != sges[i] {
				t.Fatalf("SGE[%d] = %v (send), %v (receive), want %v", i, send.SGE[i], recv.SGE[i], sges[i])
			}
		}
		if n < len(sges) {
			want += uint64(sges[n].Length)
		}
	}
	// With fewer elements than before, leftover elements are ignored.
	if send.SetSGE(sges[0]); send.Length() != 10 {
		t.Errorf("Length = %d, want 10", send.Length())
	}
}

// Excess elements are counted, so that a post rejects the request.
func TestSetSGETooMany(t *testing.T) {
	for _, n := range []int{verbs.MaxSGE + 1, 300} {
		var send verbs.SendWR
		var recv verbs.RecvWR
		send.SetSGE(make([]verbs.SGE, n)...)
		recv.SetSGE(make([]verbs.SGE, n)...)
		if send.NumSGE <= verbs.MaxSGE || recv.NumSGE <= verbs.MaxSGE {
			t.Errorf("SetSGE of %d elements: NumSGE = %d (send), %d (receive), want more than %d", n, send.NumSGE, recv.NumSGE, verbs.MaxSGE)
		}
	}
}

// Length neither overflows nor trusts NumSGE.
func TestLengthBounds(t *testing.T) {
	sge := verbs.SGE{Length: math.MaxUint32}
	send := verbs.SendWR{NumSGE: 255, SGE: [verbs.MaxSGE]verbs.SGE{sge, sge, sge, sge}}
	recv := verbs.RecvWR{NumSGE: 255, SGE: send.SGE}
	const want = verbs.MaxSGE * math.MaxUint32
	if send.Length() != want || recv.Length() != want {
		t.Errorf("Length = %d (send), %d (receive), want %d", send.Length(), recv.Length(), uint64(want))
	}
}

func TestSendFlags(t *testing.T) {
	tests := []struct {
		f     verbs.SendFlags
		text  string
		valid bool
	}{
		{0, "0", true},
		{verbs.SendFence, "FENCE", true},
		{verbs.SendSignaled, "SIGNALED", true},
		{verbs.SendSolicited, "SOLICITED", true},
		{verbs.SendInline, "INLINE", true},
		{verbs.SendSignaled | verbs.SendInline, "SIGNALED|INLINE", true},
		{15, "FENCE|SIGNALED|SOLICITED|INLINE", true},
		{verbs.SendSignaled | 0x30, "SIGNALED|0x30", false},
		{0x80, "0x80", false},
	}
	for _, tt := range tests {
		if got := tt.f.String(); got != tt.text {
			t.Errorf("SendFlags(%#x).String() = %q, want %q", uint8(tt.f), got, tt.text)
		}
		if got := tt.f.Valid(); got != tt.valid {
			t.Errorf("SendFlags(%#x).Valid() = %v, want %v", uint8(tt.f), got, tt.valid)
		}
	}
}

// Filling and reading a work request is on the hot path.
func TestWorkRequestAllocs(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	var wr verbs.SendWR
	var sum uint64
	n := testing.AllocsPerRun(100, func() {
		wr.SetSGE(verbs.SGE{Addr: 1, Length: 2, LKey: 3}, verbs.SGE{Addr: 4, Length: 5, LKey: 6})
		sum += wr.Length()
	})
	if n != 0 {
		t.Errorf("SetSGE and Length allocate %v times", n)
	}
}

// TestSetInline: an inline request stores its bytes' address; without bytes it has no elements.
func TestSetInline(t *testing.T) {
	b := make([]byte, 24)
	var wr verbs.SendWR
	wr.SetInline(b[8:])
	want := verbs.SGE{Addr: uint64(uintptr(unsafe.Pointer(&b[8]))), Length: 16}
	if wr.Flags != verbs.SendInline || wr.NumSGE != 1 || wr.SGE[0] != want {
		t.Errorf("got flags %s and %d elements, the first %+v; want %s and %+v", wr.Flags, wr.NumSGE, wr.SGE[0], verbs.SendInline, want)
	}
	if wr.SetInline(nil); wr.NumSGE != 0 || wr.Length() != 0 {
		t.Errorf("got %d elements of %d bytes for no bytes, want none", wr.NumSGE, wr.Length())
	}
}
