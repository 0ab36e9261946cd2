package service

import (
	"context"
	"errors"
	"testing"
	"time"
)

// driven is a Peer that counts the calls of Help and Leave.
type driven struct {
	Peer
	helped, left int
	busy         bool
}

func (d *driven) Help() bool {
	d.helped++
	return !d.busy
}

func (d *driven) Leave() { d.left++ }

// TestDrive: Drive calls done before it drives the shard, stops as soon as done reports true, and
// leaves the shard otherwise, even while another goroutine drives it.
func TestDrive(t *testing.T) {
	for _, c := range []struct {
		name               string
		rounds, done       int // done is the number of rounds until done() is true
		busy, want         bool
		wantHelp, wantLeft int
	}{
		{"done before", 8, 0, false, true, 0, 0},
		{"done in the third round", 8, 3, false, true, 3, 0},
		{"done in the last round", 8, 8, false, true, 8, 0},
		{"never done", 8, 9, false, false, 8, 1},
		{"beside another goroutine", 8, 9, true, false, 8, 1},
		{"no rounds", 0, 1, false, false, 0, 1},
	} {
		d := &driven{busy: c.busy}
		got := Drive(d, c.rounds, func() bool { return d.helped >= c.done })
		if got != c.want || d.helped != c.wantHelp || d.left != c.wantLeft {
			t.Errorf("%s: Drive = %v after %d rounds, left %d times; want %v, %d, %d", c.name, got, d.helped, d.left, c.want, c.wantHelp, c.wantLeft)
		}
	}
}

// TestDriveAllocatesNothing: a wait on the hot path does not allocate.
func TestDriveAllocatesNothing(t *testing.T) {
	d, wake := &driven{}, make(chan struct{}, 1)
	if n := testing.AllocsPerRun(100, func() { Drive(d, 4, func() bool { return len(wake) > 0 }) }); n != 0 {
		t.Errorf("Drive allocates %v times, want 0", n)
	}
}

// TestAwait: Await drives the shard repeatedly until done reports true or ctx is done.
func TestAwait(t *testing.T) {
	d := &driven{}
	if err := Await(t.Context(), d, func() bool { return d.helped == 5 }); err != nil || d.helped != 5 {
		t.Errorf("Await = %v after %d rounds, want no error after 5", err, d.helped)
	}
	cause := errors.New("planted")
	ctx, cancel := context.WithTimeoutCause(t.Context(), 5*time.Millisecond, cause)
	defer cancel()
	if err := Await(ctx, d, func() bool { return false }); !errors.Is(err, cause) {
		t.Errorf("Await = %v, want %v", err, cause)
	}
}
