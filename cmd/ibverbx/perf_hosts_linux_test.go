package main

import (
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// BenchmarkRailsBetweenHosts alternates tests on two rate-limited rails and on the first rail alone, and compares
// their throughput. Hosts are network namespaces, rails are veth pairs between them, and tbf limits each rate
// (tc-tbf(8)). ratio is the median: 2 for equal rails, and 1.25 if one has a quarter of the other's rate. A test takes
// 2 s, because the slow rail is detected only after its queue has built up for some tenths of a second.
func BenchmarkRailsBetweenHosts(b *testing.B) {
	if os.Getuid() != 0 {
		b.Skip("network namespaces need root")
	}
	for _, rates := range [][2]string{{"400mbit", "400mbit"}, {"400mbit", "100mbit"}} {
		for _, size := range []string{"64KiB", "1MiB"} {
			b.Run(fmt.Sprintf("rates=%s/size=%s", strings.Join(rates[:], ","), size), func(b *testing.B) {
				hosts := cables(b, rates)
				token := newToken(b, "a secret of this benchmark, long enough")
				on := func(host int, args ...string) *process {
					own := fmt.Sprintf("10.92.0.%d,10.92.1.%d", host+1, host+1)
					args = append(append([]string{"netns", "exec", hosts[host], os.Args[0], "perf"}, args...), "--token-file", token, "--unsealed", "--addr", own)
					return start(b, exec.CommandContext(b.Context(), "ip", args...))
				}
				_, addr := served(b, on(1, "serve", "--listen", "10.92.0.2:0"))
				rate := func(rails string) float64 {
					return messageRate(on(0, addr, "--json", "-D", "2s", "-s", size, "--rails", rails))
				}
				var ratios []float64
				for b.Loop() {
					ratios = append(ratios, rate("2")/rate("1"))
				}
				slices.Sort(ratios)
				b.ReportMetric(ratios[0], "ratio-min")
				b.ReportMetric(ratios[len(ratios)/2], "ratio")
				b.ReportMetric(ratios[len(ratios)-1], "ratio-max")
			})
		}
	}
}

// cables creates two namespaces joined by one cable per rate, and returns their names.
func cables(b *testing.B, rates [2]string) (hosts [2]string) {
	b.Helper()
	run := func(command ...string) {
		b.Helper()
		if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
			b.Skipf("no namespaces with rate limits here: %v: %v %s", command, err, out)
		}
	}
	for i := range hosts {
		hosts[i] = fmt.Sprintf("ibverbx%d-perf%d", os.Getpid(), i)
		run("ip", "netns", "add", hosts[i])
		b.Cleanup(func() { _ = exec.Command("ip", "netns", "del", hosts[i]).Run() })
	}
	for rail, rate := range rates {
		dev := fmt.Sprint("rail", rail)
		run("ip", "-n", hosts[0], "link", "add", dev, "type", "veth", "peer", "name", dev, "netns", hosts[1])
		for i, host := range hosts {
			run("ip", "-n", host, "addr", "add", fmt.Sprintf("10.92.%d.%d/24", rail, i+1), "dev", dev)
			run("ip", "-n", host, "link", "set", dev, "mtu", "9000", "up")
			run("tc", "-n", host, "qdisc", "add", "dev", dev, "root", "tbf", "rate", rate, "burst", "256k", "limit", "16m")
		}
	}
	return hosts
}
