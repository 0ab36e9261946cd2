package reliable_test

import (
	"errors"
	"testing"

	"ibverbx/reliable"
	"ibverbx/softnic"
	"ibverbx/verbs"
)

// TestMessageTooLong posts messages around the inner device's size limit: rxe accepts 8 MiB, and a longer
// READ would fail on the handshake QP.
func TestMessageTooLong(t *testing.T) {
	const limit = 10_000
	link := softnic.NewMemoryLink(nil)
	short := func(inner verbs.Context) verbs.Context {
		return &interposer{Context: inner, attr: func(a *verbs.DeviceAttr) { a.MaxMsgSize = limit }}
	}
	a := newSideOver(t, link, reliable.Config{}, limit+1, short)
	b := newSide(t, link, reliable.Config{}, limit+1)
	connect(t, a, b)
	attr, err := a.ctx.QueryDevice()
	if err != nil || attr.MaxMsgSize != limit {
		t.Fatalf("QueryDevice: MaxMsgSize %d, %v, want %d", attr.MaxMsgSize, err, limit)
	}
	for _, op := range []verbs.Opcode{verbs.OpRDMAWrite, verbs.OpRDMARead} {
		wr := verbs.SendWR{Opcode: op, Flags: verbs.SendSignaled, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
		wr.SetSGE(a.sge(0, limit+1))
		if n, err := a.qp.PostSend([]verbs.SendWR{wr}); n != 0 || !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("PostSend of %v with %d bytes = %d, %v, want ErrInvalid", op, limit+1, n, err)
		}
		transfer(t, a, b, op, limit)
	}
}
