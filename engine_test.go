package ibverbx_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"ibverbx"
	"ibverbx/internal/rig"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

func TestMain(m *testing.M) { rig.Main(m) }

// goodControl returns a control message of a kind, laid out by hand.
func goodControl(kind byte, extra int) []byte {
	b := make([]byte, 32)
	copy(b, "ibvx")
	b[4], b[5] = 1, kind
	binary.LittleEndian.PutUint16(b[6:], 3)
	binary.LittleEndian.PutUint16(b[8:], 7)
	binary.LittleEndian.PutUint32(b[12:], 99)
	binary.LittleEndian.PutUint64(b[16:], 1234)
	binary.LittleEndian.PutUint64(b[24:], 5678)
	if kind != 2 {
		return b
	}
	b = append(b, make([]byte, 32+extra)...)
	binary.LittleEndian.PutUint32(b[32:], 17)
	b[42] = byte(verbs.MTU4096)
	binary.LittleEndian.PutUint16(b[46:], uint16(extra))
	b[48] = 0xfe // a GID
	return b
}

// TestControlMessages: a correct message is decoded and encoded again unchanged; any other is
// refused.
func TestControlMessages(t *testing.T) {
	for name, b := range map[string][]byte{"down": goodControl(1, 0), "offer": goodControl(2, 0), "offer with more": goodControl(2, 5), "reset": goodControl(3, 0)} {
		again, err := ibverbx.ControlRoundTrip(b)
		if err != nil || !bytes.Equal(again, b) {
			t.Errorf("%s: %x becomes %x, %v", name, b, again, err)
		}
		for cut := range len(b) {
			if _, err := ibverbx.ControlRoundTrip(b[:cut]); !errors.Is(err, verbs.ErrInvalid) {
				t.Errorf("%s cut to %d bytes: %v, want %v", name, cut, err, verbs.ErrInvalid)
			}
		}
		if _, err := ibverbx.ControlRoundTrip(append(bytes.Clone(b), 0)); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%s with a byte too many: %v, want %v", name, err, verbs.ErrInvalid)
		}
	}
	for name, change := range map[string]func(b []byte){
		"magic":   func(b []byte) { b[0] = 'x' },
		"version": func(b []byte) { b[4] = 2 },
		"kind 0":  func(b []byte) { b[5] = 0 },
		"kind 9":  func(b []byte) { b[5] = 9 },
		"QPN 0":   func(b []byte) { b[32] = 0 },
		"MTU":     func(b []byte) { b[42] = 77 },
		"extra":   func(b []byte) { b[46] = 9 },
	} {
		b := goodControl(2, 5)
		change(b)
		if _, err := ibverbx.ControlRoundTrip(b); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%s: %v, want %v", name, err, verbs.ErrInvalid)
		}
	}
}

// TestFailoverUnknownFlags: a message with flags that this version does not know is refused.
func TestFailoverUnknownFlags(t *testing.T) {
	for kind := byte(1); kind <= 3; kind++ {
		b := goodControl(kind, 0)
		b[11] = 0x80
		if _, err := ibverbx.ControlRoundTrip(b); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("kind %d with unknown flags: %v, want %v", kind, err, verbs.ErrInvalid)
		}
	}
}

// TestControlPair: datagrams arrive in order and wake their receiver, and a full queue refuses more.
func TestControlPair(t *testing.T) {
	a, b := ibverbx.ControlPair()
	woken := 0
	b.Notify(func() { woken++ })
	sent := 0
	for ; sent < 10_000; sent++ {
		if err := a.Send([]byte{byte(sent)}); err != nil {
			break
		}
	}
	if sent == 10_000 {
		t.Error("a queue without bounds")
	}
	if woken != sent {
		t.Errorf("%d datagrams woke the receiver %d times", sent, woken)
	}
	buf := make([]byte, ibverbx.MaxControl)
	for i := range sent {
		if n, err := b.Recv(buf); n != 1 || err != nil || buf[0] != byte(i) {
			t.Fatalf("Recv %d = %d, %v: %x", i, n, err, buf[:1])
		}
	}
	if n, err := b.Recv(buf); n != 0 || err != nil {
		t.Errorf("Recv of nothing = %d, %v", n, err)
	}
}

func FuzzControl(f *testing.F) {
	f.Add(goodControl(1, 0))
	f.Add(goodControl(2, 5))
	f.Add(goodControl(3, 0))
	f.Fuzz(func(t *testing.T, b []byte) {
		again, err := ibverbx.ControlRoundTrip(b)
		if err != nil {
			return
		}
		if _, err := ibverbx.ControlRoundTrip(again); err != nil {
			t.Fatalf("%x was read, and %x, which was written of it, is not: %v", b, again, err)
		}
	})
}

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
