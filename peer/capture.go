package peer

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"ibverbx/internal/pcap"
	"ibverbx/softnic"
)

// CaptureConfig names the files of a Capture. One of them may be empty. %p in a name expands to the process ID.
type CaptureConfig struct {
	// Plain is the file for packets before encryption, Wire for packets as they are sent.
	Plain, Wire string
	// SnapLen is the number of bytes kept of each packet, at most 65535. Zero means all.
	SnapLen int
	// Application is the program's name in the files. It may be empty.
	Application string
}

// Capture writes the packets of software NICs to pcapng files, with one interface per NIC. Its methods are safe for concurrent use,
// and do nothing on a nil Capture.
type Capture struct {
	files [2]captureFile // CaptureConfig.Plain and Wire
}

type captureFile struct {
	name   string
	writer *pcap.Writer // nil without a name
}

// NewCapture creates the files.
func NewCapture(cfg CaptureConfig) (*Capture, error) {
	c := &Capture{}
	for i, name := range []string{cfg.Plain, cfg.Wire} {
		if name == "" {
			continue
		}
		name = strings.ReplaceAll(name, "%p", strconv.Itoa(os.Getpid()))
		w, err := pcap.Create(name, pcap.Config{SnapLen: cfg.SnapLen, Application: cfg.Application})
		if err != nil {
			return nil, errors.Join(fmt.Errorf("capture to %s: %w", name, err), c.Close())
		}
		c.files[i] = captureFile{name, w}
	}
	return c, nil
}

// Pause drops packets while on is set.
func (c *Capture) Pause(on bool) {
	for _, w := range c.writers() {
		w.writer.Pause(on)
	}
}

// Counts calls see with the name of each file, and its numbers of written and dropped packets.
func (c *Capture) Counts(see func(name string, written, dropped uint64)) {
	for _, w := range c.writers() {
		written, dropped := w.writer.Counts()
		see(w.name, written, dropped)
	}
}

// Close closes the files. Later packets are dropped.
func (c *Capture) Close() error {
	var errs []error
	for _, w := range c.writers() {
		errs = append(errs, w.writer.Close())
	}
	return errors.Join(errs...)
}

func (c *Capture) writers() (list []captureFile) {
	if c == nil {
		return nil
	}
	for _, f := range c.files {
		if f.writer != nil {
			list = append(list, f)
		}
	}
	return list
}

// attach records the packets of a rail's link in the files.
func (c *Capture) attach(cfg *softnic.UDPConfig, rail int, nic string, addr netip.Addr) {
	if c == nil {
		return
	}
	about := fmt.Sprintf("rail %d on %v", rail, addr)
	if w := c.files[0].writer; w != nil {
		cfg.CapturePlain = w.Interface(nic, about)
	}
	if w := c.files[1].writer; w != nil {
		cfg.Capture = w.Interface(nic, about)
	}
}
