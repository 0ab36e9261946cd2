//go:build linux

package transport

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"ibverbx/bootstrap"
	"ibverbx/verbs"
)

// TestTokenFile: with a token file, a process that knows only the handle cannot connect.
func TestTokenFile(t *testing.T) {
	dir := t.TempDir()
	file := func(name, token string) Options {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, []byte(token), 0o600); err != nil {
			t.Fatal(err)
		}
		return Options{TokenFile: name}
	}
	p := plugin(t, file("token", "the secret of this job"))
	for name, c := range map[string]struct {
		o    Options
		want error
	}{
		"same":  {file("copy", " the secret of this job\n"), nil},
		"other": {file("other", "the secret of another job"), bootstrap.ErrAuth},
		"none":  {Options{}, bootstrap.ErrAuth},
	} {
		t.Run(name, func(t *testing.T) {
			h := handle{key: p.key}
			h.addrs, h.port = p.dialed()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			conn, err := plugin(t, c.o).dial(ctx, &h)
			if !errors.Is(err, c.want) {
				t.Errorf("dial: got %v, want %v", err, c.want)
			}
			if err == nil {
				_ = conn.Close()
			}
		})
	}
}

// TestAcceptLate: a connection that waits for Accept does not expire, because NCCL calls Accept only after it has heard from all other
// peers. One that waits for Connect does.
func TestAcceptLate(t *testing.T) {
	p, q := plugin(t, Options{Parts: 1}), plugin(t, Options{Parts: 1})
	from, to := shard(t, p), shard(t, q)
	b := make([]byte, HandleSize)
	n, err := to.Listen(b)
	if err != nil {
		t.Fatal(err)
	}
	var out, in *Comm
	until(t, "Connect", func() bool {
		out, err = from.Connect(b)
		return out != nil || err != nil
	})
	l := q.Listener(n)
	l.mu.Lock()
	waits := l.pending
	l.mu.Unlock()
	dials, err := from.begin(time.Now().Add(-2*forgetTime), func(ctx context.Context) (*Comm, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	})
	if err != nil {
		t.Fatal(err)
	}
	waits.expire()
	dials.expire()
	if dials.mu.Lock(); !dials.over {
		t.Error("an attempt of Connect has not expired")
	}
	dials.mu.Unlock()
	if waits.mu.Lock(); !waits.looked.IsZero() || waits.over {
		t.Errorf("an attempt of Accept expires after %v", waits.looked)
	}
	waits.mu.Unlock()
	until(t, "Accept", func() bool {
		in, err = l.Accept()
		return in != nil || err != nil
	})
	q.CloseListener(n)
	closeAll(t, newEnd(t, out, 8), newEnd(t, in, 8))
}

// TestExpiredHandle: a handle whose attempt has expired does not get the connection of a later attempt with the same number.
func TestExpiredHandle(t *testing.T) {
	p, q := plugin(t, Options{Parts: 1}), plugin(t, Options{Parts: 1})
	from, to := shard(t, p), shard(t, q)
	var handles [2][HandleSize]byte
	var numbers [2]uint32
	for i := range handles {
		var err error
		if numbers[i], err = to.Listen(handles[i][:]); err != nil {
			t.Fatal(err)
		}
		if c, err := from.Connect(handles[i][:]); c != nil || err != nil {
			t.Fatalf("Connect: got %v and %v, want an attempt", c, err)
		}
		if i == 0 {
			a := p.attempts.get(1)
			a.mu.Lock()
			a.looked = time.Now().Add(-2 * forgetTime)
			a.mu.Unlock()
			a.expire()
		}
	}
	if p.attempts.get(1) == nil || p.attempts.get(2) != nil {
		t.Error("the second attempt has another number than the first, want the same")
	}
	for range 2 {
		if c, err := from.Connect(handles[0][:]); c != nil || !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("Connect after the attempt has expired: got %v and %v, want %v", c, err, verbs.ErrInvalid)
		}
	}
	var out *Comm
	until(t, "Connect", func() bool {
		var err error
		if out, err = from.Connect(handles[1][:]); err != nil {
			t.Fatalf("Connect: got %v, want no error", err)
		}
		return out != nil
	})
	out.Close()
	for _, n := range numbers {
		q.CloseListener(n)
	}
}

// TestLateCompletion: a late completion of a closed VirtualQP fails no other connection.
func TestLateCompletion(t *testing.T) {
	p, q := plugin(t, Options{Parts: 1}), plugin(t, Options{Parts: 1})
	out, in := pair(t, shard(t, p), shard(t, q), 4096)
	out.comm.part.mu.Lock()
	_, err := out.comm.group.cq.ProcessCompletions(0, []verbs.WC{{QPN: 0xfffffe}}, nil)
	if err == nil {
		t.Error("ProcessCompletions: got no error for an unknown QP")
	}
	out.comm.group.pollFailed(err)
	out.comm.part.mu.Unlock()
	in.mustPost(0, 0, 4096)
	out.mustPost(0, 0, 4096)
	out.want(0, 4096)
	in.want(0, 4096)
	closeAll(t, out, in)
}
