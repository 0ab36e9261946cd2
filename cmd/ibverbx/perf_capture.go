package main

import (
	"context"
	"errors"
	"fmt"

	"ibverbx/internal/pcap"
	"ibverbx/internal/perf"
	"ibverbx/softnic"
)

// captured runs a test between processes. It writes the packets of its software NICs to --pcap and
// says how many there are.
func (f *perfFlags) captured(ctx context.Context, s streams, run func(context.Context, streams, *perfFlags) error) (err error) {
	if f.pcap == "" {
		return run(ctx, s, f)
	}
	if f.nics.name == providerRDMACore {
		return &perf.ConfigError{
			Where: "--pcap " + f.pcap, Problem: "the packets of real NICs do not pass through this program",
			Fix: "use --provider softnic, or capture at the port",
		}
	}
	w, err := pcap.Create(f.pcap, pcap.Config{})
	if err != nil {
		return fmt.Errorf("--pcap %s: %w", f.pcap, err)
	}
	f.capture = w
	defer func() {
		err = errors.Join(err, w.Close())
		written, dropped := w.Counts()
		fmt.Fprintf(s.err, "ibverbx: %d packets in %s", written, f.pcap)
		if dropped > 0 {
			fmt.Fprintf(s.err, ", %d were dropped", dropped)
		}
		fmt.Fprintln(s.err)
	}()
	return run(ctx, s, f)
}

// udpConfig describes the links of software NICs.
func udpConfig(capture *pcap.Writer) *softnic.UDPConfig {
	cfg := &softnic.UDPConfig{}
	if capture != nil {
		cfg.Capture = capture
	}
	return cfg
}
