package forward_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// TestRedis: redis-benchmark with 50 connections, small and pipelined requests, and values of 100
// KB. The written data is stored.
func TestRedis(t *testing.T) {
	server, bench, cli := need(t, "redis-server", "redis-server"), need(t, "redis-benchmark", "redis-tools"), need(t, "redis-cli", "redis-tools")
	ip, port := freeAddr(t)
	o := start(t, exec.Command(server, "--bind", ip, "--port", port, "--save", "", "--appendonly", "no", "--dir", t.TempDir(), "--protected-mode", "no"), syscall.SIGTERM, true)
	awaitPort(t, ip, port, o)
	host, local := through(t, ip, port)
	at := []string{"-h", host, "-p", local}
	for _, args := range [][]string{
		{"-n", "10000", "-t", "ping,set,get,incr,lpush,lrange_100"},
		{"-n", "50000", "-P", "16", "-t", "set,get"},
		{"-n", "500", "-d", "100000", "-t", "set,get"},
	} {
		out := run(t, bench, append(append(at, "-c", "50", "-q"), args...)...)
		if strings.Contains(out, "rror") || !strings.Contains(out, "requests per second") {
			t.Errorf("redis-benchmark %v printed %s", args, out)
		}
		t.Logf("redis-benchmark %v:\n%s", args, lastLines(out))
	}
	if got := strings.TrimSpace(run(t, cli, append(at, "strlen", "key:__rand_int__")...)); got != "100000" {
		t.Errorf("the value has %s bytes, want 100000", got)
	}
	if got := strings.TrimSpace(run(t, cli, append(at, "get", "counter:__rand_int__")...)); got != "10000" {
		t.Errorf("the counter is %s, want 10000", got)
	}
}

// lastLines returns a benchmark's output without overwritten lines.
func lastLines(out string) string {
	lines := strings.Split(strings.TrimSpace(out), "\n")
	for i, l := range lines {
		lines[i] = l[strings.LastIndex(l, "\r")+1:]
	}
	return strings.Join(lines, "\n")
}

// TestPostgreSQL: pgbench creates its tables and runs transactions. All transactions succeed, and
// the sums are right.
func TestPostgreSQL(t *testing.T) {
	const places = "/usr/lib/postgresql/*/bin"
	initdb, postgres := need(t, "initdb", "postgresql", places), need(t, "postgres", "postgresql", places)
	pgbench, psql := need(t, "pgbench", "postgresql", places), need(t, "psql", "postgresql-client", places)
	data := t.TempDir()
	as := func(cmd *exec.Cmd) *exec.Cmd { return cmd }
	if os.Geteuid() == 0 { // PostgreSQL refuses to run as root
		uid, gid := account(t, "postgres")
		if err := errors.Join(os.Chown(data, uid, gid), os.Chmod(filepath.Dir(data), 0o711)); err != nil {
			t.Fatalf("Chown, Chmod: got %v, want no error", err)
		}
		as = func(cmd *exec.Cmd) *exec.Cmd {
			cmd.Dir, cmd.SysProcAttr = data, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
			return cmd
		}
	}
	db := filepath.Join(data, "db")
	finish(t, as(exec.Command(initdb, "-D", db, "-U", "bench", "-A", "trust", "--no-sync", "-E", "UTF8", "--locale", "C")))
	ip, port := freeAddr(t)
	o := start(t, as(exec.Command(postgres, "-D", db, "-h", ip, "-p", port, "-k", "", "-F")), syscall.SIGINT, true)
	awaitText(t, o, "ready to accept connections")
	host, local := through(t, ip, port)
	at := []string{"-h", host, "-p", local, "-U", "bench"}
	run(t, pgbench, append(at, "-i", "-q", "-s", "2", "postgres")...)
	for _, args := range [][]string{{"-t", "200"}, {"-t", "500", "-S", "-M", "prepared"}} {
		out := run(t, pgbench, append(append(at, "-n", "-c", "8", "-j", "2"), append(args, "postgres")...)...)
		if !strings.Contains(out, "number of failed transactions: 0 ") || !strings.Contains(out, "tps = ") {
			t.Errorf("pgbench %v printed %s", args, out)
		}
		t.Logf("pgbench %v:\n%s", args, out)
	}
	query := "select (select count(*) from pgbench_history), (select sum(abalance) from pgbench_accounts) = (select sum(bbalance) from pgbench_branches)"
	if got := strings.TrimSpace(run(t, psql, append(at, "-A", "-t", "-c", query, "postgres")...)); got != "1600|t" {
		t.Errorf("%s: got %q, want 1600|t", query, got)
	}
}

// account returns the ids of a user.
func account(t *testing.T, name string) (uid, gid int) {
	t.Helper()
	u, err := user.Lookup(name)
	if err != nil {
		t.Fatalf("Lookup: got %v, want the user of the Debian package postgresql", err)
	}
	uid, _ = strconv.Atoi(u.Uid)
	gid, _ = strconv.Atoi(u.Gid)
	return uid, gid
}

// TestIperf: iperf3 in both directions, with one connection and with four.
func TestIperf(t *testing.T) {
	iperf := need(t, "iperf3", "iperf3")
	ip, port := freeAddr(t)
	o := start(t, exec.Command(iperf, "-s", "-B", ip, "-p", port, "--forceflush"), syscall.SIGTERM, false)
	host, local := through(t, ip, port)
	for i, args := range [][]string{nil, {"-R"}, {"-P", "4"}, {"-P", "4", "-R"}} {
		awaitText(t, o, fmt.Sprintf("(test #%d)", i+1)) // the server refuses clients until the previous test is complete
		out := run(t, iperf, append([]string{"-c", host, "-p", local, "-t", "1", "-J"}, args...)...)
		type sum struct {
			Bytes int64   `json:"bytes"`
			Rate  float64 `json:"bits_per_second"`
		}
		var got struct {
			End struct {
				Sent     sum `json:"sum_sent"`
				Received sum `json:"sum_received"`
			} `json:"end"`
			Error string `json:"error"`
		}
		if err := json.Unmarshal([]byte(out), &got); err != nil || got.Error != "" || got.End.Received.Bytes < 1<<20 || got.End.Sent.Bytes < 1<<20 {
			t.Errorf("iperf3 %v: %v, %+v, want no error and at least 1 MiB", args, err, got)
		}
		t.Logf("iperf3 %v: %.2f GB/s", args, got.End.Received.Rate/8e9)
	}
}
