//go:build linux

package dropin_test

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"ibverbx/dropin"
)

// TestMulticastProgram: mckey sends to a group joined by another process, run by another user if
// the test runs as root.
func TestMulticastProgram(t *testing.T) {
	programsRan.add(t, "mckey", "-s -m 239.80.1.2")
	s := newSides(t, dropin.Options{}, "mckey -m 239.80.1.2", "mckey -s -m 239.80.1.2")
	asAnother(s.cli)
	s.ready = func(pid int) bool { // the group in the kernel's notation
		groups, _ := os.ReadFile(fmt.Sprintf("/proc/%d/net/igmp", pid))
		return bytes.Contains(groups, []byte("020150EF"))
	}
	if _, err := s.run(t); err != nil {
		t.Error(err)
	}
}

// asAnother runs a command as a second unprivileged user, if the test runs as root.
func asAnother(cmd *exec.Cmd) {
	if c := cmd.SysProcAttr; c != nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: unprivileged - 1, Gid: unprivileged - 1}}
	}
}

// TestOtherUserConnects: programs of two users connect to each other.
func TestOtherUserConnects(t *testing.T) {
	for _, c := range [][2]string{{"rping -s -C 20", "rping -c -a 127.0.0.1 -C 20 -V"}, {"rstream -S 65536 -C 2 -I 50", "rstream -S 65536 -C 2 -I 50 -s 127.0.0.1"}} {
		s := newSides(t, dropin.Options{}, c[0], c[1])
		asAnother(s.cli)
		if _, err := s.run(t); err != nil {
			t.Error(err)
		}
	}
}

// TestTwoClients: a server for several clients serves two concurrently. The second connects while
// the first transfers data: before 2025, rping's event thread stores each request in one variable,
// so its server thread accepts the second one twice if both arrive before it runs
// (https://github.com/linux-rdma/rdma-core/pull/1568).
func TestTwoClients(t *testing.T) {
	s := newSides(t, dropin.Options{}, "rping -s -P", "rping -c -a 127.0.0.1 -V -v")
	log, one := filepath.Join(scratch(t), "log"), strings.Join(s.cli.Args, " ")
	both := one + " -C 2000 >" + log + " & other=$!; until grep -qs ping " + log + " || ! kill -0 $other; do sleep 0.02; done; " + one + " -C 20 && wait $other"
	s.cli, s.cliOut = command(t, library(t), dropin.Options{}, "sh", "-c", both)
	s.endless = true
	if _, err := s.run(t); err != nil {
		t.Error(err)
	}
}

// TestNamespaces: rping and mckey run between two network namespaces, which act like two hosts.
func TestNamespaces(t *testing.T) {
	library(t)
	if os.Getuid() != 0 {
		t.Skip("only root creates network namespaces")
	}
	ns := [2]string{fmt.Sprint("ibverbx-a-", os.Getpid()), fmt.Sprint("ibverbx-b-", os.Getpid())}
	ip := func(line string) error {
		out, err := exec.CommandContext(t.Context(), "ip", strings.Fields(line)...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("ip %s: %w\n%s", line, err, out)
		}
		return nil
	}
	for n, name := range ns {
		if err := ip("netns add " + name); err != nil {
			missing(t, "network namespaces: "+err.Error())
		}
		t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", name).Run() })
		if n == 1 {
			if err := ip("link add eth netns " + ns[0] + " type veth peer name eth netns " + name); err != nil {
				missing(t, err.Error())
			}
		}
	}
	for n, name := range ns {
		for _, line := range []string{fmt.Sprintf("addr add 10.97.44.%d/24 dev eth", n+1), "link set eth up", "link set lo up"} {
			if err := ip("-n " + name + " " + line); err != nil {
				t.Fatal(err)
			}
		}
	}
	inside := func(cmd *exec.Cmd, n int) {
		path, err := exec.LookPath("ip")
		if err != nil {
			missing(t, "ip")
		}
		user := fmt.Sprint(unprivileged)
		cmd.Args = append([]string{path, "netns", "exec", ns[n], "setpriv", "--reuid", user, "--regid", user, "--clear-groups", "env", fmt.Sprintf("IBVERBX_ADDR=10.97.44.%d", n+1)}, cmd.Args...)
		cmd.Path, cmd.SysProcAttr = path, nil
	}
	for _, c := range [][2]string{
		{"rping -s -C 20", "rping -c -a 10.97.44.1 -C 20 -V"}, {"ib_write_bw -R -n 500", "ib_write_bw -R -n 500 10.97.44.1"}, {"udaddy", "udaddy -s 10.97.44.1"},
	} {
		s := newSides(t, dropin.Options{}, c[0], c[1])
		inside(s.srv, 0)
		inside(s.cli, 1)
		if out, err := s.run(t); err != nil && !strings.Contains(out, clockless) {
			t.Error(err)
		}
	}
	// The port is closed, and the second address does not exist: the error is 110 or 113.
	for address, want := range map[string]string{"10.97.44.2": "REJECTED, error 8", "10.97.44.9": "UNREACHABLE, error -11"} {
		cli, out := command(t, library(t), dropin.Options{}, "rping", "-c", "-a", address, "-C", "1", "-p", "7999")
		inside(cli, 0)
		if err := finish(t, cli); err == nil || !strings.Contains(out.String(), want) {
			t.Errorf("rping to %s: %v, want %s\n%s", address, err, want, out)
		}
	}
}

// scratch returns a directory that the programs may use.
func scratch(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp(filepath.Dir(library(t).Dir), "scratch-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestRcopy: a file sent by rcopy arrives unchanged.
func TestRcopy(t *testing.T) {
	programsRan.add(t, "rcopy", "FILE 127.0.0.1:FILE")
	dir := scratch(t)
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	data := make([]byte, 5<<20+7)
	_, _ = rand.Read(data)
	if err := os.WriteFile(from, data, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := connectBetween(t, dropin.Options{}, "!rcopy", "rcopy "+from+" 127.0.0.1:"+to); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(to); err != nil || !bytes.Equal(got, data) {
		t.Errorf("%d bytes, %v, want the %d bytes sent", len(got), err, len(data))
	}
}

// TestFio: fio's rdma engine transfers data by WRITE and READ. Its server accepts with an RNR retry
// count of 0, so SENDs fail whenever it is late.
func TestFio(t *testing.T) {
	for _, verb := range []string{"write", "read"} {
		t.Run(verb, func(t *testing.T) {
			programsRan.add(t, "fio", "--ioengine=rdma --verb="+verb)
			port := freeUDPPort(t)
			l := library(t)
			args := []string{"--name=job", "--ioengine=rdma", fmt.Sprint("--port=", port), "--bs=64k", "--size=10m"}
			s := &sides{ready: func(pid int) bool { return bound(pid, port) }}
			s.srv, s.srvOut = command(t, l, dropin.Options{}, "fio", append(args, "--rw=read")...)
			s.cli, s.cliOut = command(t, l, dropin.Options{}, "fio", append(args, "--rw=write", "--hostname=127.0.0.1", "--verb="+verb)...)
			dir := scratch(t)
			s.srv.Dir, s.cli.Dir = dir, dir
			if out, err := s.run(t); err != nil || !strings.Contains(out, "io=10.0MiB") {
				t.Errorf("%v, want 10 MiB\n%s", err, out)
			}
		})
	}
}

// TestVerbose: a process that uses rdma_cm reports it with its addresses; others do not.
func TestVerbose(t *testing.T) {
	s := newSides(t, dropin.Options{Verbose: true}, "rping -s -C 1", "rping -c -a 127.0.0.1 -C 1")
	out, err := s.run(t)
	if err != nil {
		t.Fatal(err)
	}
	for want, in := range map[string]string{
		"uses rdma_cm with device 0 at 127.": out, "rdma_cm: connects from 127.0.0.1:": out, "rdma_cm: listens at ": s.srvOut.String(),
		"rdma_cm: accepts a connection from 127.0.0.1:": s.srvOut.String(),
	} {
		if !strings.Contains(in, want) {
			t.Errorf("the report lacks %q:\n%s", want, in)
		}
	}
	cmd, list := command(t, library(t), dropin.Options{Verbose: true}, "ibv_devinfo")
	if err := cmd.Run(); err != nil || strings.Contains(list.String(), "rdma_cm") {
		t.Errorf("ibv_devinfo: %v\n%s", err, list)
	}
}
