package main

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// inNamespace runs the calling test in a separate network namespace. It returns false outside, after that run.
func inNamespace(t *testing.T) bool {
	t.Helper()
	const mark = "IBVERBX_TEST_NAMESPACE"
	if os.Getenv(mark) == t.Name() {
		return true
	}
	unshare := []string{"--user", "--map-root-user", "--net"}
	if out, err := exec.CommandContext(t.Context(), "unshare", append(unshare, "ip", "link", "set", "lo", "up")...).CombinedOutput(); err != nil {
		t.Skipf("no network namespaces: %v: %s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), "unshare", append(unshare, os.Args[0], "-test.run", "^"+t.Name()+"$", "-test.timeout", "5m", "-test.v")...)
	cmd.Env = append(os.Environ(), mark+"="+t.Name())
	if out, err := cmd.CombinedOutput(); err != nil || !bytes.Contains(out, []byte("--- PASS")) {
		t.Errorf("in a network namespace: %v\n%s", err, out)
	}
	return false
}

// ip runs an ip command.
func ip(t *testing.T, args string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "ip", strings.Fields(args)...).CombinedOutput(); err != nil {
		t.Fatalf("ip %s: %v: %s", args, err, out)
	}
}

// railRecords returns the records of level and message about rails in the log of a process, in order.
func railRecords(log []string) (list []string) {
	for _, line := range log {
		if m := regexp.MustCompile(`level=(WARN|INFO) msg="?(rail down|rail up|degraded|recovered)"? .*(rail=\d)`).FindStringSubmatch(line); m != nil {
			list = append(list, strings.Join(m[1:], " "))
		}
	}
	return list
}

// addRails adds two addresses for a server and two for a client, on a separate network.
func addRails(t *testing.T) {
	t.Helper()
	ip(t, "link set lo up")
	ip(t, "link add rails type veth peer name other")
	ip(t, "link set rails up")
	ip(t, "link set other up")
	for _, addr := range []string{"10.9.0.1/24", "10.9.0.2/24", "10.9.0.11/24", "10.9.0.12/24"} {
		ip(t, "addr add "+addr+" dev rails")
	}
}

// TestRailLostUnderServe: one of two NICs of a server disappears and returns, while a client forwards connections, and files are fetched
// before and after. All data is right. Server and client log one loss and one recovery. The metrics of the server move, the alert of docs/alerts.yml fires in a real
// Prometheus, and the result of --json has the rail.
func TestRailLostUnderServe(t *testing.T) {
	t.Parallel()
	tool(t, "prometheus")
	if !inNamespace(t) {
		return
	}
	addRails(t)
	token, dir, echo := newToken(t, "a secret of this test, long enough"), t.TempDir(), echoServer(t)
	want := content(t, filepath.Join(dir, "f"), 5<<20)
	server := begin(t, "serve", "--listen", "10.9.0.1:0", "--addr", "10.9.0.1,10.9.0.2", "--token-file", token, "--metrics", "127.0.0.1:0", "--forward", echo, dir+"=d")
	target := server.metricsAt()
	_, addr := served(t, server)
	own := []string{"--addr", "10.9.0.11,10.9.0.12", "--token-file", token}
	client, at := forwarding(t, 1, append(own, "-L", "0:"+echo, addr)...)
	prometheus := watch(t, strings.TrimSuffix(strings.TrimPrefix(target, "http://"), "/metrics"))

	text := strings.Repeat("data of a forwarded connection. ", 8<<10)
	use := func() {
		t.Helper()
		if got, err := exchange(at[0], text); err != nil || got != text {
			t.Fatalf("a forwarded connection returned %d bytes and %v, want the %d that were sent", len(got), err, len(text))
		}
	}
	get := func() {
		t.Helper()
		to := filepath.Join(t.TempDir(), "f")
		succeed(t, append([]string{"get", addr, "d/f", to, "-q"}, own...)...)
		wantContent(t, to, want)
	}
	until := func(what string, holds func() bool) {
		t.Helper()
		for limit := time.Now().Add(2 * time.Minute); !holds(); time.Sleep(100 * time.Millisecond) {
			if time.Now().After(limit) {
				_, scrape := fetch(t, target)
				t.Fatalf("in two minutes: %s\n%s", what, scrape)
			}
			use() // a loss shows when requests fail
		}
	}
	const rail = `{device="soft1",rail="1",session="10.9.0.1"}`
	metric := func(name string) float64 {
		_, scrape := fetch(t, target)
		return value(t, scrape, "ibverbx_rail_"+name+rail)
	}
	get()
	use()
	if n := metric("losses_total") + metric("sessions_down"); n != 0 {
		t.Errorf("the rail is lost %v times before the test, want 0", n)
	}
	ip(t, "addr del 10.9.0.2/24 dev rails")
	until("the rail is lost", func() bool { return metric("sessions_down") == 1 })
	until("the alert fires", func() bool {
		return len(ask(t, prometheus, `ALERTS{alertname="IbverbxRailLost",alertstate="firing",rail="1"} == 1`)) == 1
	})
	ip(t, "addr add 10.9.0.2/24 dev rails")
	until("the rail is back", func() bool { return metric("recoveries_total") == 1 && metric("sessions_down") == 0 })
	until("the alert is over", func() bool { return len(ask(t, prometheus, `ALERTS{alertname="IbverbxRailLost"} == 1`)) == 0 })
	get()
	if n := metric("losses_total"); n != 1 {
		t.Errorf("the rail was lost %v times, want once", n)
	}
	for _, p := range []*process{client, server} {
		if status := p.interrupt(); status != exitOK {
			t.Errorf("status %d, want %d: %q", status, exitOK, p.said)
		}
	}
	wantRailLog(t, server, client)
}

// wantRailLog checks the logs of a server, and of a client with --json, after the loss of rail 1.
func wantRailLog(t *testing.T, server, client *process) {
	t.Helper()
	if got := strings.Join(railRecords(server.said), ", "); got != "WARN rail down rail=1, INFO rail up rail=1" {
		t.Errorf("the server has logged %q, want one loss and one recovery: %q", got, server.said)
	}
	var messages []string
	for _, line := range client.said {
		var v struct {
			Level, Msg, Peer, Device, Cause string
			Rail                            int
			Outage                          float64
		}
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			t.Errorf("the client has logged %q: %v", line, err)
		}
		if strings.HasPrefix(v.Msg, "rail ") {
			messages = append(messages, v.Level+" "+v.Msg)
			if v.Peer == "" || v.Device != "soft1" || v.Rail != 1 || (v.Cause == "") == (v.Outage == 0) {
				t.Errorf("the client has logged %s, want the peer, rail 1, and a cause or an outage", line)
			}
		}
	}
	if got := strings.Join(messages, ", "); got != "WARN rail down, INFO rail up" {
		t.Errorf("the client has logged %q, want one loss and one recovery: %q", got, client.said)
	}
	lines := strings.Split(strings.TrimSpace(client.stdout.String()), "\n")
	var last resultLine
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &last); err != nil || last.Transport != "rc" || last.Link != "udp" || len(last.Rails) != 2 {
		t.Fatalf("the result is %s (%v), want rc, udp and two rails", lines[len(lines)-1], err)
	}
	if r := last.Rails[1]; r.Lost != 1 || r.Recovered != 1 || r.Device != "soft1" || r.SentPackets == 0 {
		t.Errorf("rail 1 of the result is %+v, want it lost and recovered once", r)
	}
}
