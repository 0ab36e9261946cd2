package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"
)

// BenchmarkBesideTCP measures what a connection of package reliable, without any setting, gets beside one of TCP. Two hosts (network
// namespaces) are connected through a third, which limits the rate to 200 Mb/s with a queue of 1 MB, 40 ms (tc-tbf(8)). share is the part of
// the rate that the connection got, and alone what it gets without TCP.
func BenchmarkBesideTCP(b *testing.B) {
	const rate = 200e6 / 8
	if os.Getuid() != 0 {
		b.Skip("network namespaces need root")
	}
	if _, err := exec.LookPath("iperf3"); err != nil {
		b.Skipf("TCP is that of iperf3: %v", err)
	}
	for _, control := range []string{"cubic", "bbr"} {
		b.Run(control, func(b *testing.B) {
			hosts := behindRouter(b)
			token := newToken(b, "a secret of this benchmark, long enough")
			in := func(host int, args ...string) *exec.Cmd {
				return exec.CommandContext(b.Context(), "ip", append([]string{"netns", "exec", hosts[host]}, args...)...)
			}
			_, addr := served(b, start(b, in(1, os.Args[0], "perf", "serve", "--listen", "10.92.1.2:0", "--token-file", token, "--unsealed", "--addr", "10.92.1.2")))
			tcp := in(1, "iperf3", "--server", "--port", "5300")
			if err := tcp.Start(); err != nil {
				b.Fatalf("iperf3: got %v, want no error", err)
			}
			defer func() { _ = tcp.Process.Kill(); _ = tcp.Wait() }()
			share := func() float64 {
				return messageRate(start(b, in(0, os.Args[0], "perf", addr, "--token-file", token, "--unsealed", "--addr", "10.92.0.1",
					"--transport", "uc", "--rails", "1", "--lanes", "1", "--json", "-D", "5s", "-s", "1MiB"))) * (1 << 20) / rate
			}
			var alone, beside, others []float64
			for b.Loop() {
				alone = append(alone, share())
				flow := in(0, "iperf3", "--client", "10.92.1.2", "--port", "5300", "--time", "10", "--congestion", control, "--json")
				var out struct {
					End struct {
						Received struct {
							Bits float64 `json:"bits_per_second"`
						} `json:"sum_received"`
					} `json:"end"`
				}
				done := make(chan error, 1)
				go func() {
					text, err := flow.Output()
					if err == nil {
						err = json.Unmarshal(text, &out)
					}
					done <- err
				}()
				time.Sleep(2 * time.Second) // TCP has the link
				beside = append(beside, share())
				if err := <-done; err != nil {
					b.Fatalf("iperf3 with %s: got %v, want no error", control, err)
				}
				others = append(others, out.End.Received.Bits/8/rate)
			}
			for name, v := range map[string][]float64{"alone": alone, "share": beside, "tcp": others} {
				slices.Sort(v)
				b.ReportMetric(v[len(v)/2], name)
			}
		})
	}
}

// behindRouter creates two namespaces connected through a third, and returns the names of the two.
func behindRouter(b *testing.B) (hosts [2]string) {
	b.Helper()
	run := func(command ...string) {
		b.Helper()
		if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			b.Skipf("no namespaces with rate limits here: %v: %v %s", command, err, out)
		}
	}
	add := func(name string) string {
		name = fmt.Sprintf("ibverbx%d-%s", os.Getpid(), name)
		run("ip", "netns", "add", name)
		b.Cleanup(func() { _ = exec.Command("ip", "netns", "del", name).Run() })
		return name
	}
	router := add("router")
	for i := range hosts {
		hosts[i] = add(fmt.Sprint("host", i))
		port := fmt.Sprint("port", i)
		run("ip", "-n", hosts[i], "link", "add", "rail0", "type", "veth", "peer", "name", port, "netns", router)
		run("ip", "-n", hosts[i], "addr", "add", fmt.Sprintf("10.92.%d.%d/24", i, i+1), "dev", "rail0")
		run("ip", "-n", router, "addr", "add", fmt.Sprintf("10.92.%d.254/24", i), "dev", port)
		run("ip", "-n", hosts[i], "link", "set", "rail0", "mtu", "4600", "up")
		run("ip", "-n", router, "link", "set", port, "mtu", "4600", "up")
		run("ip", "-n", hosts[i], "route", "add", "default", "via", fmt.Sprintf("10.92.%d.254", i))
		run("tc", "-n", router, "qdisc", "add", "dev", port, "root", "tbf", "rate", "200mbit", "burst", "64k", "limit", "1m")
	}
	run("ip", "netns", "exec", router, "sysctl", "-qw", "net.ipv4.ip_forward=1")
	return hosts
}
