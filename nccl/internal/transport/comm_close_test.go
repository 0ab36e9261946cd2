//go:build linux

package transport

import (
	"io"
	"testing"

	"ibverbx"
)

// TestLostAcknowledgement: requests that the peer has received before it closed the connection succeed, although their acknowledgements were
// lost. Other requests fail. It holds whether the peer closes the connection or exits.
func TestLostAcknowledgement(t *testing.T) {
	for name, leave := range map[string]func(in *end){
		"close": func(in *end) { in.comm.Close() },
		"exit":  func(in *end) { in.shard.plugin.Finish(io.Discard) },
	} {
		t.Run(name, func(t *testing.T) {
			p, q := plugin(t, Options{}), plugin(t, Options{})
			out, in := pair(t, shard(t, p), shard(t, q), 4096)
			for i := range 3 {
				in.mustPost(i, 0, 4096)
			}
			until(t, "three grants", func() bool { out.shard.Poll(); return out.words.Granted.Load() == 3 })
			s := out.comm.part
			s.mu.Lock() // the sender does not poll, so it gets no completion
			for i := range 2 {
				out.words.Requests[i].State.Store(RequestBusy)
				if res := out.comm.post(out.mr.addr, 4096, out.mr, i); res != OK {
					t.Errorf("post: got %d, want OK", res)
				}
			}
			for i := range 2 {
				in.want(i, 4096)
			}
			leave(in)
			<-out.comm.conn.Done()
			out.words.Requests[2].State.Store(RequestBusy)
			if res := out.comm.post(out.mr.addr, 4096, out.mr, 2); res != OK {
				t.Errorf("post: got %d, want OK", res)
			}
			out.comm.fail(ibverbx.ErrPeerGone)
			s.mu.Unlock()
			out.want(0, 4096)
			out.want(1, 4096)
			if res, _ := out.result(2); res != RemoteError {
				t.Errorf("a request that the peer has not received: got %d, want %d", res, RemoteError)
			}
			closeAll(t, out, in)
		})
	}
}
