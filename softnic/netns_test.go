//go:build linux

package softnic_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"testing"

	"ibverbx/softnic"
	"ibverbx/verbs"
)

// hostEnv selects the host that a child process of TestUDPBetweenHosts plays.
const hostEnv = "IBVERBX_TEST_HOST"

// netHost is a child's configuration; offer is its message to the peer.
type netHost struct {
	Addr     netip.Addr
	Client   bool
	MTU      int // of the interface
	Plain    bool
	Impaired bool
}

type offer struct {
	Endpoint verbs.Endpoint
	Addr     uint64
	RKey     uint32
}

const hostMemory = 8 << 20

// TestUDPBetweenHosts runs two processes in two network namespaces connected by virtual
// Ethernet devices, like two hosts on a cable.
func TestUDPBetweenHosts(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("network namespaces need root")
	}
	if out, err := exec.Command("ip", "netns", "list").CombinedOutput(); err != nil {
		t.Skipf("no network namespaces here: %v %s", err, out)
	}
	for _, v := range []struct {
		name string
		host netHost
		addr [2]string
	}{
		{"jumbo frames", netHost{MTU: 9000}, [2]string{"10.91.0.1/24", "10.91.0.2/24"}},
		{"plain", netHost{MTU: 1500, Plain: true}, [2]string{"10.91.0.1/24", "10.91.0.2/24"}},
		{"ipv6", netHost{MTU: 1500}, [2]string{"fd91::1/64", "fd91::2/64"}},
		{"loss", netHost{MTU: 9000, Impaired: true}, [2]string{"10.91.0.1/24", "10.91.0.2/24"}},
	} {
		t.Run(v.name, func(t *testing.T) {
			cable(t, v.addr, v.host.MTU)
			var hosts [2]*child
			for i := range hosts {
				h := v.host
				h.Addr, h.Client = netip.MustParsePrefix(v.addr[i]).Addr(), i == 0
				hosts[i] = startHost(t, i, h)
			}
			introduce(t, hosts)
		})
	}
}

func namespace(i int) string { return fmt.Sprintf("ibverbx%d-%d", os.Getpid(), i) }

func hardware(i int) string { return fmt.Sprintf("02:00:00:00:00:%02x", i+1) }

// cable creates two namespaces with an interface each.
func cable(t *testing.T, addrs [2]string, mtu int) {
	t.Helper()
	ip := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Skipf("cannot make namespaces: ip %v: %v %s", args, err, out)
		}
	}
	for i := range addrs {
		ns := namespace(i)
		ip("netns", "add", ns)
		t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", ns).Run() })
	}
	ip("-n", namespace(0), "link", "add", "rail", "type", "veth", "peer", "name", "rail", "netns", namespace(1))
	for i, a := range addrs {
		ns := namespace(i)
		ip("-n", ns, "addr", "add", a, "dev", "rail", "nodad")
		ip("-n", ns, "link", "set", "rail", "address", hardware(i), "mtu", fmt.Sprint(mtu), "up")
		// Resolving a neighbor takes a second or more if the first request is lost.
		peer := netip.MustParsePrefix(addrs[1-i]).Addr().String()
		ip("-n", ns, "neigh", "replace", peer, "lladdr", hardware(1-i), "dev", "rail")
	}
}

// child is a process in a namespace.
type child struct {
	in   *json.Encoder
	out  *bufio.Scanner
	cmd  *exec.Cmd
	errs bytes.Buffer // its standard error
	said bytes.Buffer // other standard output
}

func startHost(t *testing.T, i int, h netHost) *child {
	t.Helper()
	exe, err := os.Executable()
	must(t, err)
	text, err := json.Marshal(h)
	must(t, err)
	c := &child{cmd: exec.Command("ip", "netns", "exec", namespace(i), exe, "-test.run=^TestUDPHost$", "-test.v", "-test.timeout=60s")}
	c.cmd.Env = append(os.Environ(), hostEnv+"="+string(text))
	c.cmd.Stderr = &c.errs
	in, err := c.cmd.StdinPipe()
	must(t, err)
	out, err := c.cmd.StdoutPipe()
	must(t, err)
	c.in, c.out = json.NewEncoder(in), bufio.NewScanner(out)
	must(t, c.cmd.Start())
	t.Cleanup(func() {
		_ = in.Close()
		for c.out.Scan() {
			c.said.Write(append(c.out.Bytes(), '\n'))
		}
		_ = c.cmd.Wait()
		if t.Failed() {
			t.Logf("host %d: %s%s", i, c.said.String(), c.errs.String())
		}
	})
	return c
}

// introduce passes each host the other's offers, and then waits for the client.
func introduce(t *testing.T, hosts [2]*child) {
	t.Helper()
	line := func(c *child) string {
		t.Helper()
		for c.out.Scan() {
			if text, ok := bytes.CutPrefix(c.out.Bytes(), []byte("host: ")); ok {
				return string(text)
			}
			c.said.Write(append(c.out.Bytes(), '\n'))
		}
		t.Fatalf("a host has ended early (%v), want its next line", c.out.Err())
		return ""
	}
	for range 2 { // offers, and that both are ready
		a, b := line(hosts[0]), line(hosts[1])
		must(t, hosts[0].in.Encode(json.RawMessage(b)))
		must(t, hosts[1].in.Encode(json.RawMessage(a)))
	}
	if got := line(hosts[0]); got != `"done"` {
		t.Errorf("the client said %s, want \"done\"", got)
	}
	must(t, hosts[1].in.Encode("done"))
}

// TestUDPHost is one of the processes of TestUDPBetweenHosts.
func TestUDPHost(t *testing.T) {
	text := os.Getenv(hostEnv)
	if text == "" {
		t.Skip("it is part of TestUDPBetweenHosts")
	}
	var h netHost
	must(t, json.Unmarshal([]byte(text), &h))
	cfg := softnic.UDPConfig{NoSegment: h.Plain, NoCoalesce: h.Plain}
	if h.Impaired {
		cfg.Seed, cfg.Impairment = 1, softnic.Impairment{Loss: 0.02, Duplicate: 0.02, Reorder: 0.05, Corrupt: 0.01}
	}
	link, err := softnic.NewUDPLink(&cfg)
	must(t, err)
	nic, err := softnic.New(link, softnic.Config{Addr: h.Addr})
	must(t, err)
	defer func() {
		if t.Failed() {
			t.Logf("%+v", nic.Stats())
		}
		must(t, nic.Close())
	}()
	r := &rig{tb: t}
	r.ca, err = nic.Open()
	must(t, err)
	r.pa, err = r.ca.AllocPD()
	must(t, err)
	mem, mr := memory(t, r.pa, hostMemory)
	cq := newCQ(t, r.ca, 64)
	qp, err := r.pa.CreateQP(verbs.QPConfig{Type: verbs.RC, SendCQ: cq, RecvCQ: cq, MaxSendWR: 16, MaxRecvWR: 16})
	must(t, err)
	own := offer{Addr: mr.Addr(), RKey: mr.RKey()}
	own.Endpoint, err = qp.Endpoint()
	must(t, err)
	var peer offer
	in := json.NewDecoder(os.Stdin)
	say, hear := tell(t), func(v any) { must(t, in.Decode(v)) }
	say(own)
	hear(&peer)
	must(t, qp.Connect(peer.Endpoint))
	var word string
	if !h.Client {
		clear(mem.Bytes())
		recv := verbs.RecvWR{WRID: 1}
		recv.SetSGE(verbs.SGE{Addr: mr.Addr(), Length: 64, LKey: mr.LKey()})
		_, err := qp.PostRecv([]verbs.RecvWR{recv})
		must(t, err)
	}
	say("ready")
	hear(&word)
	if h.Client {
		hostClient(t, qp, cq, mem, mr, peer)
		say("done")
		return
	}
	if wc := await(t, cq, 1)[0]; wc.Status != verbs.StatusSuccess || wc.Imm != 77 {
		t.Errorf("receive = %v, immediate %d, want success and 77", wc.Status, wc.Imm)
	}
	hear(&word)
}

// tell returns a function that sends values to the parent.
func tell(t *testing.T) func(v any) {
	return func(v any) {
		b, err := json.Marshal(v)
		must(t, err)
		fmt.Printf("host: %s\n", b)
	}
}

// hostClient writes to the peer's memory, reads it back, and sends a message.
func hostClient(t *testing.T, qp verbs.QP, cq verbs.CQ, mem *verbs.Memory, mr verbs.MR, peer offer) {
	const size = hostMemory / 2
	for i := range size {
		mem.Bytes()[i] = byte(i * 31 >> 3)
	}
	post := func(op verbs.Opcode, off uint64, n uint32) {
		t.Helper()
		wr := verbs.SendWR{Opcode: op, Flags: verbs.SendSignaled, RemoteAddr: peer.Addr, RKey: peer.RKey, Imm: 77}
		wr.SetSGE(verbs.SGE{Addr: mr.Addr() + off, Length: n, LKey: mr.LKey()})
		_, err := qp.PostSend([]verbs.SendWR{wr})
		must(t, err)
		succeeded(t, await(t, cq, 1))
	}
	post(verbs.OpRDMAWrite, 0, size)
	post(verbs.OpRDMARead, size, size)
	if !bytes.Equal(mem.Bytes()[:size], mem.Bytes()[size:]) {
		t.Error("what was read is not what was written")
	}
	post(verbs.OpAtomicFetchAndAdd, 0, 8)
	post(verbs.OpSendWithImm, 0, 64)
}
