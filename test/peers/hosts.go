package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"time"
)

// hosts are two network namespaces joined by a veth pair. Nil is this host alone, on the loopback interface.
type hosts struct {
	name string
	mtu  int
	made bool
}

// address returns the address of an end.
func (h *hosts) address(end int) string { return "10.254.0." + strconv.Itoa(end+1) }

// listen returns the address for servers.
func (h *hosts) listen() string {
	if h == nil {
		return "127.0.0.1:0"
	}
	return h.address(0) + ":0"
}

// command is a program that runs on the host of an end.
func (h *hosts) command(ctx context.Context, end int, args ...string) *exec.Cmd {
	if h != nil {
		args = append([]string{"ip", "netns", "exec", h.space(end)}, args...)
	}
	return exec.CommandContext(ctx, args[0], args[1:]...)
}

func (h *hosts) space(end int) string { return fmt.Sprintf("%s-%d", h.name, end) }

// setUp creates the namespaces on first use. It requires root.
func (h *hosts) setUp(ctx context.Context) error {
	if h == nil || h.made {
		return nil
	}
	if err := installed("ip", "iproute2"); err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return &missing{"a network namespace (needs root)", "iproute2, as root"}
	}
	h.name = fmt.Sprintf("peers%d-%d", os.Getpid(), h.mtu)
	h.made = true
	steps := [][]string{
		{"netns", "add", h.space(0)},
		{"netns", "add", h.space(1)},
		{"link", "add", "v0", "netns", h.space(0), "mtu", strconv.Itoa(h.mtu), "type", "veth", "peer", "name", "v0", "netns", h.space(1), "mtu", strconv.Itoa(h.mtu)},
	}
	for end := range 2 {
		in := []string{"-n", h.space(end)}
		steps = append(steps, append(in[:2:2], "addr", "add", h.address(end)+"/24", "dev", "v0"),
			append(in[:2:2], "link", "set", "v0", "up"), append(in[:2:2], "link", "set", "lo", "up"))
	}
	for _, args := range steps {
		if _, err := output(ctx, exec.CommandContext(ctx, "ip", args...)); err != nil {
			return err
		}
	}
	return nil
}

// tearDown removes the namespaces.
func (h *hosts) tearDown() {
	if h == nil || !h.made {
		return
	}
	for end := range 2 {
		_ = exec.Command("ip", "netns", "del", h.space(end)).Run() // best effort
	}
}

// awaitPort waits until a server on this host accepts connections.
func awaitPort(ctx context.Context, port string) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", port))
		if err == nil {
			return c.Close()
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}

// freePort returns a currently free TCP port.
func freePort() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer func() { _ = l.Close() }()
	_, port, err := net.SplitHostPort(l.Addr().String())
	return port, err
}
