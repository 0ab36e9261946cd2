package ring_test

import (
	"fmt"
	"testing"

	"ibverbx/internal/ring"
)

// TestDatagrams: a full queue drops the oldest datagram, and a closed one every datagram.
func TestDatagrams(t *testing.T) {
	var q ring.Datagrams
	b := make([]byte, 16)
	if !q.Put([]byte("x")) || q.Take(b) != 0 {
		t.Error("a closed queue keeps a datagram, want it lost")
	}
	q.Open()
	lost := 0
	for i := range ring.MaxDatagrams + 10 {
		if q.Put(fmt.Append(nil, i)) {
			lost++
		}
	}
	q.Open() // a second call has no effect
	for i := 10; i < ring.MaxDatagrams+10; i++ {
		if got := string(b[:q.Take(b)]); got != fmt.Sprint(i) {
			t.Fatalf("Take = %q, want %d", got, i)
		}
	}
	if n := q.Take(b); n != 0 || lost != 10 {
		t.Errorf("%d bytes are left and %d datagrams were lost, want 0 and 10", n, lost)
	}
}
