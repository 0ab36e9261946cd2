//go:build linux && cgo && (amd64 || arm64)

package main

import (
	stdcontext "context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"ibverbx"
	"ibverbx/dropin"
	"ibverbx/internal/pcap"
	"ibverbx/metrics"
	"ibverbx/settings"
	"ibverbx/softnic"
)

// start creates the NICs configured in the environment.
func (l *library) start() error {
	if len(l.nics) > 0 {
		return nil // an earlier call created them before failing
	}
	for _, unknown := range settings.Unknown(os.Environ()) {
		fmt.Fprintf(os.Stderr, "ibverbx: warning: %v\n", unknown)
	}
	var o dropin.Options
	if err := o.ReadEnv(os.LookupEnv); err != nil {
		return err
	}
	cfg := softnic.UDPConfig{
		AssumeSoftNICs: !o.AnyPeer, Impairment: o.Impairment, PortGIDs: o.PortGIDs,
		SharedMemory: !o.OnlyPackets && o.Impairment == (softnic.Impairment{}) && o.Capture == "",
	}
	if o.Capture != "" {
		w, err := pcap.Create(strings.ReplaceAll(o.Capture, "%p", strconv.Itoa(os.Getpid())), pcap.Config{})
		if err != nil {
			return err
		}
		cfg.CapturePlain, l.capture = w.Interface("ibverbx", "software NICs of process "+strconv.Itoa(os.Getpid())), w
	}
	nics, err := newNICs(&cfg, &o)
	if err != nil {
		if l.capture != nil {
			err = errors.Join(err, l.capture.Close())
			l.capture = nil
		}
		return err
	}
	l.nics = nics
	l.stats, l.verbose, l.portGIDs = o.Stats, o.Verbose, o.PortGIDs
	if o.Metrics != "" {
		if err := l.serveMetrics(o.Metrics); err != nil {
			fmt.Fprintf(os.Stderr, "ibverbx: no metrics at %s: %v\n", o.Metrics, err) // the program runs without metrics
		}
	}
	return nil
}

// newNICs creates all NICs, or none.
func newNICs(cfg *softnic.UDPConfig, o *dropin.Options) (nics []device, err error) {
	link, err := softnic.NewUDPLink(cfg)
	if err != nil {
		return nil, err
	}
	for i := range max(o.Devices, len(o.Addrs), 1) {
		nic := softnic.Config{MTU: o.MTU}
		if i < len(o.Addrs) {
			nic.Addr = o.Addrs[i]
		} else {
			nic.Addr = ownLoopback()
		}
		n, err := softnic.New(link, nic)
		if err != nil {
			for _, d := range nics {
				err = errors.Join(err, d.nic.Close())
			}
			return nil, err
		}
		nics = append(nics, device{n, nic.Addr})
	}
	return nics, nil
}

// serveMetrics serves the metrics of the NICs until the process exits.
func (l *library) serveMetrics(addr string) error {
	rails := make([]ibverbx.RailConfig, len(l.nics))
	for i, d := range l.nics {
		c, err := d.nic.Open()
		if err != nil {
			return err
		}
		rails[i].Context = c
	}
	server, err := metrics.NewProcessServer(stdcontext.Background(), addr)
	if err != nil {
		return err
	}
	server.Collector().AddQP("", nil, rails)
	if l.verbose {
		fmt.Fprintf(os.Stderr, "ibverbx: process %d: metrics at http://%s/metrics\n", os.Getpid(), server.Addr())
	}
	return nil
}

// finish completes the capture and prints the counters. The process is about to exit.
func (l *library) finish(out io.Writer) error {
	for _, d := range l.nics {
		if l.stats {
			fmt.Fprintf(out, "ibverbx: process %d: %s: %+v\n", os.Getpid(), d.nic.Name(), d.nic.Stats())
		}
	}
	if l.capture != nil {
		return l.capture.Close()
	}
	return nil
}

// ownLoopback returns a random address in 127.128.0.0/9. If another process has the same, the NIC uses another UDP port.
func ownLoopback() netip.Addr {
	var b [4]byte
	_, _ = rand.Read(b[:]) // never fails: it aborts the process instead
	b[0], b[1] = 127, b[1]|128
	return netip.AddrFrom4(b)
}

// interfaceOf returns the index of the network interface with an address, or 0.
func interfaceOf(addr netip.Addr) uint32 {
	interfaces, _ := net.Interfaces() // empty after an error
	for _, in := range interfaces {
		addrs, _ := in.Addrs()
		for _, a := range addrs {
			p, err := netip.ParsePrefix(a.String())
			if err == nil && (p.Addr().Unmap() == addr || (in.Flags&net.FlagLoopback != 0 && p.Contains(addr))) {
				return uint32(in.Index)
			}
		}
	}
	return 0
}
