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

// fakeSession is a session that passes each sent message to sent.
type fakeSession struct {
	service.Session
	sent        chan []byte
	incarnation uint64
}

func (s *fakeSession) Incarnation() uint64 { return s.incarnation }

func (s *fakeSession) Send(_ context.Context, _ service.ID, body []byte) error {
	s.sent <- body
	return nil
}

// fakePeer is a peer with one process and sessions controlled by the test.
type fakePeer struct {
	Peer[*Process]
	session *fakeSession
	proc    *Process
}

func newFakePeer() *fakePeer {
	p := &fakePeer{session: &fakeSession{sent: make(chan []byte, 10), incarnation: 1}}
	p.Init(PeerConfig{Service: service.TransferID, Peer: stays{}, Serving: 1})
	proc := p.NewProcess(1, 1)
	p.proc = &proc
	return p
}

// up begins a session; the returned function closes it.
func (p *fakePeer) up() (end func()) {
	p.Mu.Lock()
	defer p.Mu.Unlock()
	p.Begin(context.Background(), p.session, p.proc)
	return func() { p.Down(p.session) }
}

// id returns the id of the next request sent.
func (p *fakePeer) id() uint32 {
	r := wire.NewReader(<-p.session.sent)
	r.U8()
	return r.U32()
}

type result struct {
	m   any
	err error
}

func ask(ctx context.Context, c *Process, limit Limit) chan result {
	done := make(chan result, 1)
	go func() {
		m, err := c.Ask(ctx, limit, func(id uint32) []byte { return Begin(1, id) })
		done <- result{m, err}
	}()
	return done
}

func TestAsk(t *testing.T) {
	p, limit := newFakePeer(), make(Limit, 1)
	c := p.proc
	defer p.up()()
	done := ask(context.Background(), c, limit)
	id := p.id()
	if !c.Waiting(id) {
		t.Error("the request does not wait")
	}
	c.Answer(id+1, "another one")
	c.Answer(id, "yes")
	if r := <-done; r.m != "yes" || r.err != nil || len(limit) != 0 {
		t.Errorf("Ask: got %v, %v and %d tokens", r.m, r.err, len(limit))
	}
	done = ask(context.Background(), c, limit)
	c.Answer(p.id(), &Refusal{Code: Denied, Text: "no"})
	if r := <-done; !errors.Is(r.err, ErrDenied) || !strings.Contains(r.err.Error(), "no") {
		t.Errorf("Ask of a refused request: got %v, want %v", r.err, ErrDenied)
	}
}

// TestAskAgain: a request is retried in the next session, and fails when its process dies.
func TestAskAgain(t *testing.T) {
	p, limit := newFakePeer(), make(Limit, 1)
	c := p.proc
	end := p.up()
	done := ask(context.Background(), c, limit)
	first := p.id()
	end()
	defer p.up()()
	if second := p.id(); second == first || c.Waiting(first) {
		t.Errorf("the request is sent again with id %d after %d, which waits: %v", second, first, c.Waiting(first))
	}
	dead := errors.New("dead")
	p.Mu.Lock()
	ended, again := c.End(dead), c.End(ErrBusy)
	p.Mu.Unlock()
	if r := <-done; !errors.Is(r.err, dead) || !ended || again || !c.Over() {
		t.Errorf("Ask of a dead process: got %v", r.err)
	}
}

// TestAskGivenUp: an abandoned request keeps its token until the response.
func TestAskGivenUp(t *testing.T) {
	p, limit := newFakePeer(), make(Limit, 1)
	c := p.proc
	defer p.up()()
	ctx, cancel := context.WithCancel(context.Background())
	done := ask(ctx, c, limit)
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

// TestRestartedBeforeUp: between the hello of a session with another process and its start,
// requests to the old process fail with ErrRestarted, and requests to any process wait for the new
// one.
func TestRestartedBeforeUp(t *testing.T) {
	p := newFakePeer()
	p.up()()
	p.Mu.Lock()
	if old := p.Expect(p.session); old != nil {
		t.Error("the same process: got one that has ended")
	}
	next := &fakeSession{sent: make(chan []byte, 1), incarnation: 2}
	old := p.Expect(next)
	if old != p.proc || p.Proc != p.proc {
		t.Fatalf("another process: got %p, want %p, which stays", old, p.proc)
	}
	old.End(service.ErrRestarted)
	p.Mu.Unlock()
	if r := <-ask(t.Context(), old, make(Limit, 1)); !errors.Is(r.err, service.ErrRestarted) {
		t.Errorf("Ask of the old process: got %v, want %v", r.err, service.ErrRestarted)
	}
	ready := make(chan *Process)
	go func() {
		proc, _ := p.Ready(context.Background())
		ready <- proc
	}()
	proc := p.NewProcess(2, 2)
	p.Mu.Lock()
	if known := p.Known(1); known != nil {
		t.Error("a process that has ended is known")
	}
	if replaced := p.Begin(context.Background(), next, &proc); replaced != old {
		t.Errorf("Begin: got %p, want the old process %p", replaced, old)
	}
	p.Mu.Unlock()
	if got := <-ready; got != &proc || p.In(next) != &proc || p.In(p.session) != nil {
		t.Errorf("Ready: got %p, want %p", got, &proc)
	}
}

// stays is a peer that stays connected in one session.
type stays struct {
	service.Peer
	session service.Session
}

func (p stays) Session() service.Session { return p.session }

func (p stays) Redial() {}

// TestLeft: a request fails when the peer stays connected without the service, and immediately when
// the peer is forgotten or this side closes.
func TestLeft(t *testing.T) {
	for want, change := range map[error]func(p *fakePeer, done chan struct{}){
		ErrBusy:           func(*fakePeer, chan struct{}) {},
		ErrFailed:         func(p *fakePeer, _ chan struct{}) { p.Forget(ErrFailed) },
		service.ErrClosed: func(_ *fakePeer, done chan struct{}) { close(done) },
	} {
		p, done := newFakePeer(), make(chan struct{})
		p.cfg.Peer, p.cfg.Patience, p.cfg.Left = stays{session: &fakeSession{}}, 5*time.Millisecond, ErrBusy
		if want != ErrBusy { //nolint:errorlint // it is a key
			p.cfg.Patience = time.Hour
		}
		p.Done = done
		p.up()()
		asked := ask(t.Context(), p.proc, make(Limit, 1))
		change(p, done)
		if r := <-asked; !errors.Is(r.err, want) {
			t.Errorf("Ask: got %v, want %v", r.err, want)
		}
	}
}

func TestServe(t *testing.T) {
	p := newFakePeer()
	done, gate := make(chan struct{}), make(chan struct{})
	p.Done = done
	p.up()
	answer := func(context.Context) []byte {
		<-gate
		return []byte("yes")
	}
	if err := p.Serve(p.session, answer); err != nil {
		t.Fatal(err)
	}
	if err := p.Serve(p.session, answer); !errors.Is(err, ErrProtocol) {
		t.Errorf("Serve of one request too many: got %v, want %v", err, ErrProtocol)
	}
	close(gate)
	if got := string(<-p.session.sent); got != "yes" {
		t.Errorf("the response is %q", got)
	}
	close(done)
	if err := p.Serving.Take(context.Background()); err != nil {
		t.Fatal(err)
	}
	p.Serving.Give()
	if err := p.Serve(p.session, answer); err != nil {
		t.Fatal(err)
	}
	if err := p.Serving.Take(context.Background()); err != nil || len(p.session.sent) > 0 {
		t.Errorf("a service that is closed has responded (%v)", err)
	}
	if err := p.Serve(&fakeSession{}, answer); err != nil {
		t.Errorf("Serve in a session that has ended: got %v, want no error", err)
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

// TestErrorsStayOnOneLine: a peer's reason is quoted.
func TestErrorsStayOnOneLine(t *testing.T) {
	p := newFakePeer()
	defer p.up()()
	done := ask(t.Context(), p.proc, make(Limit, 1))
	p.proc.Answer(p.id(), &Refusal{Code: Denied, Text: "no\nINFO all is well\x1b[2J"})
	if r := <-done; !strings.Contains(r.err.Error(), `no\nINFO all is well\x1b[2J`) {
		t.Errorf("got %q, want one line with the text quoted", r.err)
	}
}
