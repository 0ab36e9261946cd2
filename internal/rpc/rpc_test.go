package rpc

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"ibverbx/internal/service"
	"ibverbx/internal/wire"
)

// fakeSession is a session that hands the id of each request to sent.
type fakeSession struct {
	service.Session
	sent chan []byte
}

func (s *fakeSession) Send(_ context.Context, _ service.ID, body []byte) error {
	s.sent <- body
	return nil
}

// fakeProcess is a process whose sessions the test makes and ends.
type fakeProcess struct {
	session *fakeSession
	lives   chan context.Context
	ended   chan struct{}
	dead    error
}

func newFakeProcess() *fakeProcess {
	return &fakeProcess{session: &fakeSession{sent: make(chan []byte, 10)}, lives: make(chan context.Context, 10), ended: make(chan struct{})}
}

func (p *fakeProcess) Connected(ctx context.Context) (service.Session, context.Context, error) {
	select {
	case live := <-p.lives:
		return p.session, live, nil
	case <-p.ended:
		return nil, nil, p.dead
	case <-ctx.Done():
		return nil, nil, context.Cause(ctx)
	}
}

func (p *fakeProcess) Ended() <-chan struct{} { return p.ended }

func (p *fakeProcess) Dead() error {
	select {
	case <-p.ended:
		return p.dead
	default:
		return nil
	}
}

// up begins a session, which end ends.
func (p *fakeProcess) up() (end func()) {
	live, end := context.WithCancel(context.Background())
	p.lives <- live
	return end
}

// id returns the id of the request that was sent next.
func (p *fakeProcess) id() uint32 {
	r := wire.NewReader(<-p.session.sent)
	r.U8()
	return r.U32()
}

type result struct {
	m   any
	err error
}

func ask(ctx context.Context, c *Calls, p Process, limit Limit) chan result {
	done := make(chan result, 1)
	go func() {
		m, err := c.Ask(ctx, p, service.TransferID, limit, func(id uint32) []byte { return Begin(1, id) })
		done <- result{m, err}
	}()
	return done
}

func TestAsk(t *testing.T) {
	var c Calls
	p, limit := newFakeProcess(), make(Limit, 1)
	defer p.up()()
	done := ask(context.Background(), &c, p, limit)
	id := p.id()
	if !c.Waiting(id) {
		t.Error("the request does not wait")
	}
	c.Answer(id+1, "another one")
	c.Answer(id, "yes")
	if r := <-done; r.m != "yes" || r.err != nil || len(limit) != 0 {
		t.Errorf("Ask: got %v, %v and %d tokens", r.m, r.err, len(limit))
	}
	defer p.up()()
	done = ask(context.Background(), &c, p, limit)
	c.Answer(p.id(), &Refusal{Code: Denied, Text: "no"})
	if r := <-done; !errors.Is(r.err, ErrDenied) || !strings.Contains(r.err.Error(), "no") {
		t.Errorf("Ask of a refused request: got %v, want %v", r.err, ErrDenied)
	}
}

// TestAskAgain: a request is sent again in the next session, and fails when its process dies.
func TestAskAgain(t *testing.T) {
	var c Calls
	p, limit := newFakeProcess(), make(Limit, 1)
	end := p.up()
	done := ask(context.Background(), &c, p, limit)
	first := p.id()
	defer p.up()()
	end()
	if second := p.id(); second == first || c.Waiting(first) {
		t.Errorf("the request is sent again with id %d after %d, which waits: %v", second, first, c.Waiting(first))
	}
	p.dead = errors.New("dead")
	close(p.ended)
	if r := <-done; !errors.Is(r.err, p.dead) {
		t.Errorf("Ask of a dead process: got %v", r.err)
	}
}

// TestAskGivenUp: an abandoned request keeps its token until the response.
func TestAskGivenUp(t *testing.T) {
	var c Calls
	p, limit := newFakeProcess(), make(Limit, 1)
	defer p.up()()
	ctx, cancel := context.WithCancel(context.Background())
	done := ask(ctx, &c, p, limit)
	id := p.id()
	cancel()
	if r := <-done; !errors.Is(r.err, context.Canceled) || len(limit) != 1 {
		t.Errorf("Ask: got %v and %d tokens, want 1", r.err, len(limit))
	}
	c.Answer(id, "late")
	deadline := time.Now().Add(10 * time.Second)
	for len(limit) > 0 && time.Now().Before(deadline) {
		time.Sleep(time.Millisecond)
	}
	if len(limit) > 0 {
		t.Error("the token is not returned after the response")
	}
}

func TestServe(t *testing.T) {
	s := &fakeSession{sent: make(chan []byte, 1)}
	serving, done, gate := make(Limit, 1), make(chan struct{}), make(chan struct{})
	answer := func(context.Context) []byte {
		<-gate
		return []byte("yes")
	}
	if err := Serve(context.Background(), s, service.TransferID, serving, done, answer); err != nil {
		t.Fatal(err)
	}
	if err := Serve(context.Background(), s, service.TransferID, serving, done, answer); !errors.Is(err, ErrProtocol) {
		t.Errorf("Serve of one request too many: got %v, want %v", err, ErrProtocol)
	}
	close(gate)
	if got := string(<-s.sent); got != "yes" {
		t.Errorf("the response is %q", got)
	}
	close(done)
	if err := serving.Take(context.Background()); err != nil {
		t.Fatal(err)
	}
	serving.Give()
	if err := Serve(context.Background(), s, service.TransferID, serving, done, answer); err != nil {
		t.Fatal(err)
	}
	if err := serving.Take(context.Background()); err != nil || len(s.sent) > 0 {
		t.Errorf("a service that is closed has responded (%v)", err)
	}
}

func TestAs(t *testing.T) {
	if s, err := As[string]("yes", nil); s != "yes" || err != nil {
		t.Errorf("As = %q, %v", s, err)
	}
	if _, err := As[string](1, nil); !errors.Is(err, ErrProtocol) {
		t.Errorf("As of another type: got %v, want %v", err, ErrProtocol)
	}
	if _, err := As[string](nil, ErrBusy); err != ErrBusy { //nolint:errorlint // it is returned as it is
		t.Errorf("As of an error: got %v", err)
	}
}

func TestCodes(t *testing.T) {
	for c := NotFound; c <= Failed; c++ {
		m := &Refusal{ID: 7, Code: c, Text: c.Err().Error()}
		r := wire.NewReader(m.Encode())
		if r.U8(); *ReadRefusal(&r) != *m || !r.End() {
			t.Errorf("%+v is decoded to something else", m)
		}
	}
	if err := (Failed + 1).Err(); err != ErrMismatch { //nolint:errorlint // it is returned as it is
		t.Errorf("an unknown code: got %v, want %v", err, ErrMismatch)
	}
	long := (&Refusal{Code: Failed, Text: strings.Repeat("ä", maxText)}).Encode()
	r := wire.NewReader(long[1:])
	if m := ReadRefusal(&r); !r.End() || len(m.Text) != maxText {
		t.Errorf("a long text is cut to %d bytes: valid %v", len(m.Text), r.End())
	}
}

func FuzzRefusal(f *testing.F) {
	f.Add((&Refusal{1, Busy, "later"}).Encode())
	f.Add([]byte{0x3f, 1, 2, 3, 4, 5})
	f.Add([]byte{0xff})
	f.Fuzz(func(t *testing.T, b []byte) {
		r := wire.NewReader(b)
		k := Kind(r.U8())
		if k == KindRefusal {
			if m := ReadRefusal(&r); r.End() && !bytes.Equal(m.Encode(), b) {
				t.Errorf("%x is decoded to %+v, which is encoded as %x", b, m, m.Encode())
			}
			return
		}
		m := ReadUnknown(k, &r)
		if ok := len(b) > 0 && k != 0 && (k >= Response || len(b) >= 5); r.End() != ok || ok && (m == nil) != (k >= Response) {
			t.Errorf("%x: valid %v, a request %v", b, r.End(), m != nil)
		}
	})
}
