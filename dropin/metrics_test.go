//go:build linux

package dropin_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"ibverbx/dropin"
)

// TestMetrics: two processes with the same metrics address serve metrics on two ports while they
// run. A process without a free port, or without devices, runs without metrics.
func TestMetrics(t *testing.T) {
	l := library(t)
	o := dropin.Options{Metrics: fmt.Sprintf("127.0.0.1:%d", freePort(t)), OnlyPackets: true, Verbose: true}
	port := freePort(t)
	srv, srvErr := logged(t, l, o, "ib_write_bw", "-D", "5", "--run_infinitely", "-p", fmt.Sprint(port))
	cli, cliErr := logged(t, l, o, "ib_write_bw", "-D", "5", "--run_infinitely", "-p", fmt.Sprint(port), "127.0.0.1")
	ended := serve(t, srv, port)
	if err := cli.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_, _ = cli.Process.Kill(), srv.Process.Kill() // the test is over
		_, _ = cli.Wait(), <-ended
	}()
	addrs := map[string]bool{}
	for file, want := range map[string]string{srvErr: "ibverbx_nic_received_packets_total", cliErr: "ibverbx_nic_sent_packets_total"} {
		addr := announced(t, file)
		addrs[addr] = true
		moved := regexp.MustCompile(`(?m)^` + want + `\{device="soft0"\} [1-9]`)
		for begin := time.Now(); ; time.Sleep(5 * time.Millisecond) {
			page, err := scrape(addr)
			if err == nil && moved.MatchString(page) {
				break
			}
			if time.Since(begin) > patience {
				t.Fatalf("%s: %v, want %s above 0 in\n%s", addr, err, want, page)
			}
		}
	}
	if len(addrs) != 2 {
		t.Errorf("the processes serve at %v, want two ports", addrs)
	}
	bad, out := command(t, l, dropin.Options{Metrics: "192.0.2.1:9400"}, "ibv_devinfo", "-l")
	if err := bad.Run(); err != nil || !strings.Contains(out.String(), "no metrics at 192.0.2.1:9400") || !strings.Contains(out.String(), "soft0") {
		t.Errorf("ibv_devinfo with an address of another host: %v, want a device and one line about metrics in\n%s", err, out)
	}
}

// logged is command with its output in a file, which it also returns.
func logged(t *testing.T, l dropin.Library, o dropin.Options, name string, args ...string) (cmd *exec.Cmd, file string) {
	t.Helper()
	cmd, _ = command(t, l, o, name, args...)
	f, err := os.Create(filepath.Join(t.TempDir(), "output"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	cmd.Stdout, cmd.Stderr = f, f
	return cmd, f.Name()
}

// announced waits until a process has printed its metrics address.
func announced(t *testing.T, file string) string {
	t.Helper()
	line := regexp.MustCompile(`metrics at (http://\S+)`)
	for begin := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if found := line.FindSubmatch(b); found != nil {
			return string(found[1])
		}
		if time.Since(begin) > patience {
			t.Fatalf("no address of metrics in\n%s", b)
		}
	}
}

// scrape returns the page served at addr.
func scrape(addr string) (string, error) {
	resp, err := http.Get(addr)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return string(b), err
}
