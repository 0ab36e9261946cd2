//go:build linux && cgo && (amd64 || arm64)

package main

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"ibverbx/dropin/internal/cm"
	"ibverbx/dropin/internal/cm/abi"
	"ibverbx/dropin/internal/cm/wire"
	"ibverbx/internal/roce"
)

// cmFile is a file of the connection manager.
type cmFile struct {
	*cm.File
	tokens *eventTokens
}

// eventTokens are the tokens in the event descriptor of a file. Its descriptor is a duplicate, because a program may close its own
// unnoticed and reuse the number.
type eventTokens struct {
	mu sync.Mutex
	fd int // -1 once it is closed
}

// Add implements cm.Tokens.
func (e *eventTokens) Add() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.fd >= 0 {
		signal(e.fd)
	}
}

// Drop implements cm.Tokens.
func (e *eventTokens) Drop(n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.fd >= 0 {
		absorb(e.fd, n)
	}
}

func (e *eventTokens) close() {
	e.mu.Lock()
	defer e.mu.Unlock()
	_ = unix.Close(e.fd)
	e.fd = -1
}

// openCM opens a file of the connection manager.
func (l *library) openCM(fd int) (uint32, error) {
	l.managing.Lock()
	defer l.managing.Unlock()
	if l.manager == nil {
		devices, err := l.cmDevices()
		if err != nil {
			return 0, err
		}
		remote := slices.ContainsFunc(devices, func(d cm.Device) bool { return !d.Addr.IsLoopback() })
		later := func(d time.Duration, f func()) func() {
			t := time.AfterFunc(d, f)
			return func() { t.Stop() }
		}
		cfg := cm.Config{Devices: devices, Link: wire.Link{LocalOnly: !remote}, Later: later, Random: rand.Uint32, Unreported: l.unreported}
		if l.verbose {
			cfg.Report = report
			for _, d := range devices {
				report("uses rdma_cm with device %d at %s, UDP port %d", d.Index, d.Addr, cmp.Or(d.LID, roce.Port))
			}
		}
		l.manager = cm.New(cfg)
	}
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	tokens := &eventTokens{fd: own}
	return l.cmFiles.add(&cmFile{l.manager.Open(tokens), tokens}), nil
}

// unreported reports whether a QP has completions to poll.
func (l *library) unreported(qpn uint32) bool {
	q := l.qps.find(func(q *qpair) bool { return q.Num() == qpn })
	return q != nil && q.QP.(interface{ Unreported() bool }).Unreported()
}

// report prints an action of the connection manager.
func report(format string, args ...any) {
	fmt.Fprintf(os.Stderr, "ibverbx: process %d: %s\n", os.Getpid(), fmt.Sprintf(format, args...))
}

// cmDevices describes the NICs to the connection manager.
func (l *library) cmDevices() (devices []cm.Device, err error) {
	for n, d := range l.nics {
		ctx, err := d.nic.Open()
		if err != nil {
			return nil, err
		}
		port, err := ctx.QueryPort(1)
		row, e := ctx.QueryGID(1, 0)
		if err = errors.Join(err, e, ctx.Close()); err != nil {
			return nil, err
		}
		devices = append(devices, cm.Device{
			GUID: d.nic.GUID(), Index: uint32(n), Addr: d.addr, GID: row.GID, LID: port.LID, MTU: port.ActiveMTU,
		})
	}
	return devices, nil
}

// commandCM executes a command. from is the second file named by the command, or 0.
func (l *library) commandCM(n, from uint32, call abi.Call) ([]byte, error) {
	f := l.cmFiles.get(n)
	if f == nil {
		return nil, gone
	}
	if other := l.cmFiles.get(from); other != nil {
		call.From = other.File
	}
	return abi.Do(f.File, call)
}

func (l *library) closeCM(n uint32) error {
	f := l.cmFiles.get(n)
	if f == nil {
		return gone
	}
	l.cmFiles.remove(n)
	f.Close()
	f.tokens.close()
	return nil
}
