package interop_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"ibverbx/internal/enginetest"

	"ibverbx"
)

// hostEnv selects the host that a child process of TestTwoHosts plays: its role ("listen" or
// "dial"), the addresses of its two NICs, and its peer's addresses.
const hostEnv = "IBVERBX_TEST_INTEROP_HOST"

// TestTwoHosts runs two processes in two network namespaces with two wires between them, like two hosts with
// two NICs each. They connect through package peer, with a token, and use a VirtualQP over softnic on UDP,
// whose fault layer loses 1% of all packets and reorders 5%. Both compare the data.
func TestTwoHosts(t *testing.T) {
	if os.Getenv("IBVERBX_TEST_RXE") == "1" {
		t.Skip("needs no device of the kernel: it runs outside of the machine")
	}
	wantNamespaces(t)
	for _, v := range []struct {
		name   string
		format string // of an address, by wire and host
		bits   int
	}{
		{"IPv4", "10.79.%d.%d", 24},
		{"IPv6", "fd79:%d::%d", 64},
	} {
		t.Run(v.name, func(t *testing.T) {
			var spaces [2]namespace
			for i := range spaces {
				spaces[i] = newNamespace(t, fmt.Sprintf("ibverbx%d-host%d", os.Getpid(), i))
			}
			var addrs [2][2]string // by host and wire
			for wire := range 2 {
				dev := fmt.Sprintf("rail%d", wire)
				command(t, "ip", "-n", string(spaces[0]), "link", "add", dev, "type", "veth", "peer", "name", dev, "netns", string(spaces[1]))
				for host, space := range spaces {
					addrs[host][wire] = fmt.Sprintf(v.format, wire, host+1)
					command(t, "ip", "-n", string(space), "addr", "add", fmt.Sprintf("%s/%d", addrs[host][wire], v.bits), "dev", dev, "nodad")
					command(t, "ip", "-n", string(space), "link", "set", dev, "mtu", "4200", "up")
				}
			}
			listener := startHost(t, spaces[0], "listen", addrs[0], addrs[1])
			listener.expect("listening at ")
			dialer := startHost(t, spaces[1], "dial", addrs[1], addrs[0])
			dialer.expect("bytes are the same: ")
			listener.expect("bytes are the same: ")
		})
	}
}

// wantNamespaces skips a test if network namespaces cannot be created. CI can create them.
func wantNamespaces(t *testing.T) {
	t.Helper()
	name := fmt.Sprintf("ibverbx%d-try", os.Getpid())
	out, err := exec.Command("ip", "netns", "add", name).CombinedOutput()
	switch {
	case err == nil:
		command(t, "ip", "netns", "del", name)
	case os.Getenv("IBVERBX_CI") == "1":
		t.Fatalf("ip netns add: %v, want success in CI: %s", err, out)
	default:
		t.Skipf("network namespaces need root and iproute2: ip netns add: %v %s", err, out)
	}
}

// child is a process in a namespace.
type child struct {
	t     *testing.T
	role  string
	lines *bufio.Scanner
	said  strings.Builder
}

// startHost starts TestHost in a namespace. It must have succeeded by the end of the test.
func startHost(t *testing.T, space namespace, role string, own, peers [2]string) *child {
	t.Helper()
	exe, err := os.Executable()
	enginetest.Must(t, err)
	cmd := exec.Command("ip", "netns", "exec", string(space), exe, "-test.run=^TestHost$", "-test.v", "-test.timeout=120s")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s %s %s %s %s", hostEnv, role, own[0], own[1], peers[0], peers[1]))
	out, err := cmd.StdoutPipe()
	enginetest.Must(t, err)
	cmd.Stderr = cmd.Stdout
	enginetest.Must(t, cmd.Start())
	c := &child{t: t, role: role, lines: bufio.NewScanner(out)}
	t.Cleanup(func() {
		if t.Failed() {
			_ = cmd.Process.Kill() // otherwise it waits for an exited peer
		}
		for c.lines.Scan() {
			fmt.Fprintln(&c.said, c.lines.Text())
		}
		if err := cmd.Wait(); err != nil || t.Failed() {
			t.Errorf("the host that was to %s ended with %v, want success; it said:\n%s", role, err, c.said.String())
		}
	})
	return c
}

// expect waits for a line with a prefix.
func (c *child) expect(prefix string) {
	c.t.Helper()
	for c.lines.Scan() {
		fmt.Fprintln(&c.said, c.lines.Text())
		if strings.HasPrefix(c.lines.Text(), prefix) {
			return
		}
	}
	err := c.lines.Err()
	if err == nil {
		err = io.EOF
	}
	c.t.Fatalf("the host that was to %s ended (%v), want it to say %q", c.role, err, prefix)
}

// take polls until n successful completions have arrived.
func take(t *testing.T, cq *ibverbx.VirtualCQ, n int) []ibverbx.WC {
	t.Helper()
	wcs := make([]ibverbx.WC, n)
	for got := 0; got < n; {
		k, err := cq.Wait(t.Context(), wcs[got:])
		enginetest.Must(t, err)
		for _, wc := range wcs[got : got+k] {
			enginetest.Must(t, wc.Err())
		}
		got += k
	}
	return wcs
}
