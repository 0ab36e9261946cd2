package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"

	"ibverbx/internal/pcap"
	"ibverbx/softnic"
)

// captureFlags selects the capture files for software NIC packets.
type captureFlags struct {
	pcap    string // file for packets before sealing
	wire    string // file for packets as sent on the wire
	snapLen int

	files [2]*pcap.Writer // of pcap and wire; nil if unset
}

// on reports whether packets are captured.
func (c *captureFlags) on() bool { return c.pcap != "" || c.wire != "" }

// measuring pauses the capture outside measurements, for example during warm-up.
func (c *captureFlags) measuring(on bool) {
	for _, w := range c.files {
		if w != nil {
			w.Pause(!on)
		}
	}
}

// captured runs a test between processes. It writes the packets of its software NICs to --pcap and --pcap-wire, and
// prints their number.
func (f *perfFlags) captured(ctx context.Context, s streams, run func(context.Context, streams, *perfFlags) error) (err error) {
	c := &f.capture
	if c.on() && f.nics.name == providerRDMACore {
		return refuse("--pcap", "the packets of real NICs do not pass through this program", "use --provider softnic, or capture at the port")
	}
	defer func() { err = errors.Join(err, c.close(s.err)) }()
	if err := c.open(); err != nil {
		return err
	}
	return run(ctx, s, f)
}

// open creates the files. Capturing is paused until the measurement starts.
func (c *captureFlags) open() (err error) {
	for i, name := range []string{c.pcap, c.wire} {
		if name == "" {
			continue
		}
		if c.files[i], err = pcap.Create(name, pcap.Config{SnapLen: c.snapLen, Application: "ibverbx " + buildVersion().Version}); err != nil {
			return fmt.Errorf("%s %s: %w", [...]string{"--pcap", "--pcap-wire"}[i], name, err)
		}
	}
	c.measuring(false)
	return nil
}

// close closes the files and prints the number of packets in each.
func (c *captureFlags) close(notes io.Writer) error {
	var errs []error
	for i, w := range c.files {
		if w == nil {
			continue
		}
		errs = append(errs, w.Close())
		written, dropped := w.Counts()
		fmt.Fprintf(notes, "ibverbx: %d packets in %s", written, [...]string{c.pcap, c.wire}[i])
		if dropped > 0 {
			fmt.Fprintf(notes, ", %d were dropped", dropped)
		}
		fmt.Fprintln(notes)
	}
	return errors.Join(errs...)
}

// udpConfig configures the link of a rail's software NIC. Each NIC is a separate capture interface.
func (c *captureFlags) udpConfig(rail int, nic string, addr netip.Addr) *softnic.UDPConfig {
	cfg := &softnic.UDPConfig{}
	about := fmt.Sprintf("rail %d on %v", rail, addr)
	if w := c.files[0]; w != nil {
		cfg.CapturePlain = w.Interface(nic, about)
	}
	if w := c.files[1]; w != nil {
		cfg.Capture = w.Interface(nic, about)
	}
	return cfg
}
