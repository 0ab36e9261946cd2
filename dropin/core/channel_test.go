//go:build linux && cgo && (amd64 || arm64)

package main

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"ibverbx/verbs"
)

// busyCQ is a CQ whose waiters are woken while its destruction is refused.
type busyCQ struct {
	verbs.CQ
	wake func()
}

func (b *busyCQ) Close() error {
	b.wake()
	return verbs.ErrBusy
}

// TestRefusedDestroy: an event that arrives while the destruction of its CQ is refused is not lost.
func TestRefusedDestroy(t *testing.T) {
	fd, err := unix.Eventfd(0, unix.EFD_SEMAPHORE|unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	var l library
	c := &cqueue{ch: &channel{fd: fd, users: 1}}
	c.CQ = &busyCQ{wake: c.wake}
	if err := l.destroyCQ(l.cqs.add(c), &abiDelivered{}); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("destroyCQ = %v, want ErrBusy", err)
	}
	if got := c.ch.take(); got != c {
		t.Errorf("the event is of CQ %p, want %p", got, c)
	}
	if c.ch.take() != nil {
		t.Error("there is a second event")
	}
}
