//go:build linux

package dropin_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"ibverbx/dropin"
)

// connectors are programs that connect by address: the command lines of both sides, without the
// port. A server marked with ! runs until it is killed.
var connectors = []struct{ server, client string }{
	{"rping -s -C 20", "rping -c -a 127.0.0.1 -C 20 -V"},
	{"rping -s -a ::1 -C 20", "rping -c -a ::1 -C 20 -V"},
	{"!rping -s -P", "rping -c -a 127.0.0.1 -C 20 -V -q"},
	{"ucmatose", "ucmatose -s 127.0.0.1"},
	{"ucmatose -m", "ucmatose -m -s 127.0.0.1"},
	{"ucmatose -c 100", "ucmatose -c 100 -s 127.0.0.1"},
	{"!cmtime", "cmtime -c 1000 -s 127.0.0.1"},
	{"rdma_server", "rdma_client -s 127.0.0.1"},
	{"rdma_xserver", "rdma_xclient -s 127.0.0.1"},
	{"udaddy", "udaddy -s 127.0.0.1"},
	{"udaddy -b ::1 -c 8 -C 50", "udaddy -s ::1 -c 8 -C 50"},
	{"ib_write_bw -R -n 1000", ""},
	{"ib_write_bw -R -q 4 -n 500", ""},
	{"ib_write_bw -R -z -n 500", ""},
	{"ib_write_lat -R -n 500", ""},
	{"ib_read_bw -R -n 1000", ""},
	{"ib_read_lat -R -n 500", ""},
	{"ib_send_bw -R -n 1000", ""},
	{"ib_send_lat -R -n 500", ""},
	{"ib_atomic_bw -R -n 500", ""},
	{"ib_atomic_lat -R -n 500", ""},
	{"rstream -S 65536 -C 10 -I 100", "rstream -S 65536 -C 10 -I 100 -s 127.0.0.1"},
	{"!IBVERBX_ADDR=127.0.0.2 IBVERBX_GIDS=port udpong -b 127.0.0.2", "IBVERBX_ADDR=127.0.0.1 IBVERBX_GIDS=port udpong -C 100 -s 127.0.0.2"},
	{"riostream -S 65536 -C 1 -I 10", "riostream -S 65536 -C 1 -I 10 -s 127.0.0.1"},
	{"!UCX_TLS=rc_v UCX_SOCKADDR_TLS_PRIORITY=rdmacm io_demo", "UCX_TLS=rc_v UCX_SOCKADDR_TLS_PRIORITY=rdmacm io_demo -i 20 127.0.0.1"},
}

// bound reports whether a process on this host has bound a UDP port. A query waits in the socket
// until the port listens.
func bound(pid, port int) bool { return listed(pid, "udp", fmt.Sprintf(":%04X", port)) }

// listed reports whether a process's socket table contains a local address with a suffix.
func listed(pid int, table, suffix string) bool {
	for _, name := range []string{table, table + "6"} {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, name)) // a host may lack IPv6
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) > 3 && strings.HasSuffix(f[1], suffix) {
				return true
			}
		}
	}
	return false
}

// freeUDPPort returns an unbound port.
func freeUDPPort(t *testing.T) int {
	t.Helper()
	c, err := net.ListenPacket("udp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).Port
}

// sides are a server and a client that connect by address.
type sides struct {
	srv, cli       *exec.Cmd
	srvOut, cliOut *bytes.Buffer
	// ready reports whether the server with process ID pid serves.
	ready func(pid int) bool
	// endless is set if the server runs until it is killed.
	endless bool
}

// newSides returns the sides of two command lines, which lack the port. udaddy and mckey have a fixed port, and their -p is the port space.
func newSides(t *testing.T, o dropin.Options, server, client string) *sides {
	t.Helper()
	l, port := library(t), freeUDPPort(t)
	line := func(s string) []string { return append(strings.Fields(s), "-p", fmt.Sprint(port)) }
	if strings.HasPrefix(server, "udaddy") || strings.HasPrefix(server, "mckey") {
		port, line = 7174, strings.Fields
	}
	s, srvLine, cliLine := &sides{}, line(server), line(client)
	s.srv, s.srvOut = command(t, l, o, srvLine[0], srvLine[1:]...)
	s.cli, s.cliOut = command(t, l, o, cliLine[0], cliLine[1:]...)
	s.ready = func(pid int) bool { return bound(pid, port) }
	return s
}

// run runs both sides and returns the client's output.
func (s *sides) run(t *testing.T) (string, error) {
	t.Helper()
	if err := s.srv.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.srv.Wait() }()
	for begin := time.Now(); !s.ready(s.srv.Process.Pid) && len(ended) == 0; time.Sleep(5 * time.Millisecond) {
		if time.Since(begin) > patience {
			_ = s.srv.Process.Kill()
			t.Fatalf("the server does not serve after %v", patience)
		}
	}
	stop := time.AfterFunc(patience, func() { _ = s.srv.Process.Kill() })
	defer stop.Stop()
	err := finish(t, s.cli)
	if err != nil || s.endless {
		_ = s.srv.Process.Kill()
	}
	if e := <-ended; !s.endless {
		err = errors.Join(err, e)
	}
	if err != nil {
		err = fmt.Errorf("%w\nclient:\n%s\nserver:\n%s", err, s.cliOut, s.srvOut)
	}
	return s.cliOut.String(), err
}

// connectBetween runs a server and a client that connect by address. It returns the client's output.
func connectBetween(t *testing.T, o dropin.Options, server, client string) (string, error) {
	t.Helper()
	server, endless := strings.CutPrefix(server, "!")
	s := newSides(t, o, server, client)
	s.endless = endless
	return s.run(t)
}

// ownFault reports whether a test must be repeated because of a fault in the program itself.
func ownFault(err error) bool {
	return err != nil && (lostEnd(err.Error()) || optionless(err.Error()) || strings.Contains(err.Error(), clockless))
}

// lostEnd reports whether a side has failed because the acknowledgement of its last message was
// lost (make repeat-dropin). perftest -R and fi_pingpong say goodbye on the connection. The
// receiver of the last message disconnects and destroys its QP. RC NICs do not acknowledge for a
// destroyed QP, and the disconnection flushes unacknowledged requests.
func lostEnd(said string) bool {
	if os.Getenv("IBVERBX_LOSS") == "" {
		return false
	}
	return strings.Contains(said, "Bad wc status 12") || strings.Contains(said, "cq_readerr: Work Request Flushed Error")
}

// optionless reports whether a riostream client connected between the server's rlisten and
// rsetsockopt, so that the connection lacks memory for riomap. From rlisten on, librdmacm accepts
// in its own thread.
func optionless(said string) bool { return strings.Contains(said, "riomap: Cannot allocate memory") }

// TestConnectors: unmodified programs connect by address.
func TestConnectors(t *testing.T) {
	for _, c := range connectors {
		if c.client == "" {
			c.client = c.server + " 127.0.0.1"
		}
		t.Run(c.client, func(t *testing.T) {
			words := strings.Fields(c.client)
			name := words[slices.IndexFunc(words, func(w string) bool { return !strings.Contains(w, "=") })]
			programsRan.add(t, name, strings.Join(slices.DeleteFunc(words, func(w string) bool { return w == name }), " "))
			// An rsocket for datagrams reaches only the process with UDP port 4791 of an address.
			// Others may use 127.0.0.2.
			alone := strings.NewReplacer("127.0.0.2", fmt.Sprintf("127.%d.%d.2", 1+rand.N(120), rand.N(256)))
			run := func() (string, error) {
				return connectBetween(t, dropin.Options{}, alone.Replace(c.server), alone.Replace(c.client))
			}
			_, err := run()
			for try := 1; try < 3 && ownFault(err); try++ {
				_, err = run()
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// TestConnectorsLossy: lost packets cost time, but never data.
func TestConnectorsLossy(t *testing.T) {
	var o dropin.Options
	o.Impairment.Loss = 0.01
	for _, c := range [][2]string{{"rping -s -C 50", "rping -c -a 127.0.0.1 -C 50 -V"}, {"rstream -S 65536 -C 1 -I 20", "rstream -S 65536 -C 1 -I 20 -s 127.0.0.1"}} {
		if _, err := connectBetween(t, o, c[0], c[1]); err != nil {
			t.Error(err)
		}
	}
}

// TestFabricConnections: libfabric's connected endpoints and reliable datagrams, whose server exchanges the port over TCP.
func TestFabricConnections(t *testing.T) {
	for _, provider := range []string{"verbs -e msg", "verbs;ofi_rxm -e rdm"} {
		t.Run(provider, func(t *testing.T) {
			args := append(strings.Fields("-p "+provider), "-c", "-I", "20")
			programsRan.add(t, "fi_pingpong", strings.Join(args, " "))
			between(t, dropin.Options{}, "fi_pingpong", args...)
		})
	}
}

// TestQperfConnections: qperf with -cm1 runs several tests in sequence.
func TestQperfConnections(t *testing.T) {
	tests := []string{"rc_bw", "rc_lat", "rc_rdma_write_bw", "rc_rdma_read_bw"}
	programsRan.add(t, "qperf", "-cm1 "+strings.Join(tests, " "))
	l, port := library(t), freePort(t)
	srv, _ := command(t, l, dropin.Options{}, "qperf", "-lp", fmt.Sprint(port))
	ended := serve(t, srv, port)
	defer func() { <-ended }()
	defer func() { _ = srv.Process.Kill() }()
	cli, out := command(t, l, dropin.Options{}, "qperf", append([]string{"-lp", fmt.Sprint(port), "127.0.0.1", "-t", "1", "-to", "60", "-cm1"}, tests...)...) // it waits 5 s by default
	if err := finish(t, cli); err != nil || strings.Count(out.String(), " = ") < len(tests) {
		t.Errorf("%v, want results of %d tests\n%s", err, len(tests), out)
	}
}

// spreload is the library that moves the TCP connections of a program to rsockets.
const spreload = "/usr/lib/x86_64-linux-gnu/rsocket/librspreload.so"

// TestRsocketPreload: a TCP program runs on RDMA through librspreload, preloaded before or after
// this library. Programs that create sockets with SOCK_CLOEXEC, such as Python, stay on TCP:
// librspreload passes these sockets on.
func TestRsocketPreload(t *testing.T) {
	l := library(t)
	if _, err := os.Stat(spreload); err != nil {
		missing(t, spreload+" (Debian: librdmacm1)")
	}
	row := programsRan.add(t, "librspreload.so", "rstream -T s -S 65536 -C 10 -I 20")
	row.pkg = "librdmacm1"
	vars, err := l.Env(nil)
	if err != nil {
		t.Fatal(err)
	}
	own := strings.TrimPrefix(vars[0], "LD_PRELOAD=")
	for _, preload := range []string{own + ":" + spreload, spreload + ":" + own} {
		line := "LD_PRELOAD=" + preload + " rstream -T s -S 65536 -C 10 -I 20"
		out, err := connectBetween(t, dropin.Options{Stats: true}, line, line+" -s 127.0.0.1")
		if err != nil || strings.Contains(out, "PacketsSent:0 ") || !strings.Contains(out, "PacketsSent:") {
			t.Errorf("%v, want a client that sends packets\n%s", err, out)
		}
	}
	programsRan.add(t, "iperf", "LD_PRELOAD=librspreload.so -c 127.0.0.1 -t 1")
	with := "LD_PRELOAD=" + own + ":" + spreload + " iperf "
	if out, err := connectBetween(t, dropin.Options{Stats: true}, with+"-s -P 1", with+"-c 127.0.0.1 -t 1"); err != nil || strings.Contains(out, "PacketsSent:0 ") {
		t.Errorf("%v, want a client that sends packets\n%s", err, out)
	}
}

// connector builds a program of testdata.
func connector(t *testing.T, name string) (dropin.Library, string) {
	t.Helper()
	l := library(t)
	program := filepath.Join(filepath.Dir(l.Dir), name)
	cc := exec.CommandContext(t.Context(), "cc", "-std=gnu11", "-O2", "-o", program, "testdata/"+name+".c", "-l:librdmacm.so.1", "-libverbs", "-lpthread")
	if out, err := cc.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return l, program
}

// TestConnect: errors, limits, waiting, migration, forks and descriptors of connections (testdata/connect.c).
func TestConnect(t *testing.T) {
	l, program := connector(t, "connect")
	for _, mode := range []string{"errors", "backlog", "migrate", "nonblocking", "closing", "forking", "replaced", "blocking", "many", "gone", "unacked", "beside", "writing"} {
		t.Run(mode, func(t *testing.T) {
			cmd, out := command(t, l, dropin.Options{}, program, mode)
			if err := finish(t, cmd); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// pairServer starts the server of testdata/pair.c. run runs the program in another mode.
func pairServer(t *testing.T) (srv *exec.Cmd, ended <-chan error, run func(mode string, args ...string) (*exec.Cmd, *bytes.Buffer)) {
	t.Helper()
	l, program := connector(t, "pair")
	port := freeUDPPort(t)
	run = func(mode string, args ...string) (*exec.Cmd, *bytes.Buffer) {
		return command(t, l, dropin.Options{}, program, append([]string{mode, fmt.Sprint(port)}, args...)...)
	}
	srv, out := run("server")
	if err := srv.Start(); err != nil {
		t.Fatal(err)
	}
	c := make(chan error, 1)
	go func() { c <- srv.Wait() }()
	for begin := time.Now(); !bound(srv.Process.Pid, port); time.Sleep(5 * time.Millisecond) {
		if time.Since(begin) > patience || len(c) > 0 {
			t.Fatalf("the server does not serve\n%s", out)
		}
	}
	t.Cleanup(func() { _ = srv.Process.Kill() })
	return srv, c, run
}

// TestKilledConnection: killing a process closes its connections.
func TestKilledConnection(t *testing.T) {
	for range 10 {
		srv, ended, run := pairServer(t)
		cli, out := run("kill", fmt.Sprint(srv.Process.Pid))
		if err := finish(t, cli); err != nil {
			t.Errorf("%v\n%s", err, out)
			_ = srv.Process.Kill()
		}
		<-ended
	}
}

// TestKilledAtRandom kills a process while it connects and disconnects. After a client's death, the
// server drops its connections and serves others. After the server's death, the client fails
// instead of hanging.
func TestKilledAtRandom(t *testing.T) {
	srv, ended, run := pairServer(t)
	for range 10 {
		cli, _ := run("hammer")
		if err := cli.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(rand.N(150 * time.Millisecond))
		_ = cli.Process.Kill()
		_ = cli.Wait()
	}
	for begin := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		cli, out := run("count")
		if err := finish(t, cli); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		if out.String() == "0\n" {
			break
		}
		if time.Since(begin) > patience {
			t.Fatalf("the server has %s connections of killed clients", out)
		}
	}
	for range 10 {
		cli, out := run("hammer")
		time.AfterFunc(rand.N(150*time.Millisecond), func() { _ = srv.Process.Kill() })
		if err := finish(t, cli); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		<-ended
		srv, ended, run = pairServer(t)
	}
}
