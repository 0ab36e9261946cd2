package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/internal/perf/measure"
	"ibverbx/peer"
	"ibverbx/reliable"
	"ibverbx/verbs"
)

// TestPerfTransportUC: every operation works over RC QPs built from UC QPs, with every scheme and with one or several
// lanes. Every byte is verified.
func TestPerfTransportUC(t *testing.T) {
	for _, args := range []string{
		"write -s 8,64K,1M", "write --imm -s 64K --scheme tally", "write --imm -s 64K --scheme dqplb", "write --imm -s 64K --scheme spray",
		"read -s 8,64K", "send -s 8,64K", "atomic", "write -b -s 64K", "write -q 1 -s 64K", "write --imm -q 1 -s 64K", "send -q 1 -b -s 4K",
		"write --rails 1 -q 3 -s 1M --fragment 64K", "write -q 80 -s 1M", "write --lat -s 8", "write --lat --imm -s 8", "send --lat -s 64", "read --lat -s 8", "atomic --lat",
	} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			words := append([]string{"perf", "--transport", "uc", "--check", "-v", "-n", "40"}, strings.Fields(args)...)
			if out := succeed(t, words...); !strings.Contains(out, "Transport       : uc, RC made of 16 UC QPs each") {
				t.Errorf("the table does not name the transport uc:\n%s", out)
			}
		})
	}
}

func TestPerfTransportTableGolden(t *testing.T) {
	golden(t, `RDMA_Write BW Test: 1 rail, 2 lanes of RC, reliable over softnic over memory
MTU 4096, TX depth 128, scheme tally, policy round-robin
 #bytes #iterations BW peak[MiB/sec] BW average[MiB/sec] MsgRate[Mpps] ratio
 N N N N N N
 rail N N % N MiB soft0 -> soft1
 memcpy at N KiB: N MiB/sec (N GB/s); ratio is BW average to memcpy
 verdict: V
 data check: N messages, N MiB, N errors
`, "perf", "-s", "64K", "-n", "100", "--rails", "1", "-q", "2", "--transport", "uc", "--policy", "round-robin", "--check")
}

// TestPerfTransportSaid: the table and the JSON name the transport, including for raw QPs.
func TestPerfTransportSaid(t *testing.T) {
	for _, tt := range []struct{ args, transport, connection, provider, table string }{
		{"", "rc", "RC", "softnic", "rc, by the NIC"},
		{"--transport rc", "rc", "RC", "softnic", "rc, by the NIC"},
		{"--transport uc", "uc", "RC", "reliable over softnic", "uc, RC made of 16 UC QPs each, in software"},
		{"--transport ud", "ud", "RC", "reliable over softnic", "ud, RC over 16 UD QPs of each NIC, in software"},
		{"-c UC", "raw", "UC", "softnic", "raw, nothing is retransmitted"},
		{"-c UC --transport rc", "raw", "UC", "softnic", "raw, nothing is retransmitted"},
	} {
		words := append([]string{"perf", "-s", "64", "-n", "20"}, strings.Fields(tt.args)...)
		v := object(t, words...)
		if v["transport"] != tt.transport || v["connection"] != tt.connection || v["provider"] != tt.provider {
			t.Errorf("perf %s: transport %v, connection %v, provider %v, want %s, %s, %s", tt.args, v["transport"], v["connection"], v["provider"], tt.transport, tt.connection, tt.provider)
		}
		if line := lineWith(succeed(t, append(words, "-v")...), " Transport       :"); !strings.HasSuffix(line, ": "+tt.table) {
			t.Errorf("perf %s: the table says %q, want %q", tt.args, line, tt.table)
		}
	}
}

// TestPerfPaths: every path is listed in the table with -v and always in the JSON. Tests without paths omit the list.
func TestPerfPaths(t *testing.T) {
	args := []string{"perf", "--transport", "uc", "-s", "1M", "-n", "40", "--rails", "1", "-q", "1"}
	lanes := object(t, args...)["per_lane"].([]any)
	paths := lanes[0].(map[string]any)["paths"].([]any)
	if len(paths) != 16 {
		t.Fatalf("%d paths, want 16: %v", len(paths), paths)
	}
	sent := 0.0
	for i, p := range paths {
		p := p.(map[string]any)
		sent += p["sent"].(float64) - p["retransmitted"].(float64)
		if p["state"] != "UP" || p["qpn"].(float64) == 0 || p["rtt_us"].(float64) < p["queue_delay_us"].(float64) || p["lost"] == nil {
			t.Errorf("path %d is %v, want one that is up, with a round trip time", i, p)
		}
	}
	if sent < 40*16 { // 16 chunks per message
		t.Errorf("%v chunks on all paths, want those of 40 messages at least", sent)
	}
	table := func(args ...string) int { return strings.Count(succeed(t, args...), " UP ") }
	if n, folded := table(append(args, "-v")...), table(args...); n != 16 || folded != 0 {
		t.Errorf("the table has %d paths with -v and %d without, want 16 and none", n, folded)
	}
	if _, ok := object(t, "perf", "-s", "64", "-n", "20")["per_lane"].([]any)[0].(map[string]any)["paths"]; ok {
		t.Error("lanes of the NIC's own RC QPs have paths")
	}
}

func TestPerfTransportErrors(t *testing.T) {
	for _, tt := range []struct {
		args string
		want []string
	}{
		{"--transport tcp", []string{"--transport tcp", "use rc, uc or ud"}},
		{"--transport raw", []string{"--transport", "use rc, uc or ud"}},
		{"--transport uc -c UC", []string{"--transport uc", "measures raw QPs", "drop --connection UC"}},
		{"send --transport uc -c UD", []string{"--transport uc", "--connection UD measures raw QPs", "drop --connection UD"}},
		{"--server --transport uc", []string{"--transport belongs to the client", "use it with 'ibverbx perf'"}},
	} {
		refused(t, "perf "+tt.args, tt.want...)
	}
}

// TestPerfTransportHelp: the help distinguishes --transport uc from -c UC.
func TestPerfTransportHelp(t *testing.T) {
	out := strings.Join(strings.Fields(succeed(t, "perf", "--help-all")), " ")
	says(t, out, "--transport uc is different", "measure raw QPs", "from 16 UC QPs", "--transport ud")
}

// wrap prepares both ends of a test.
func wrap(n *nics, c *measure.Config) error {
	f := &perfFlags{}
	return errors.Join(f.prepare(c, n, 0), f.prepare(c, n, 1))
}

// withoutUC is a NIC without UC support.
type withoutUC struct{ verbs.Context }

func (c withoutUC) QueryDevice() (verbs.DeviceAttr, error) {
	a, err := c.Context.QueryDevice()
	a.Capabilities &^= verbs.CapUC | verbs.CapSRQOnUC
	return a, err
}

// TestPerfTransportNoUC: the error for a NIC without UC names the alternative.
func TestPerfTransportNoUC(t *testing.T) {
	n := softRails(t, 1)
	n.ends[1][0] = ibverbx.RailConfig{Context: withoutUC{n.ends[1][0].Context}}
	err := wrap(n, &measure.Config{Rails: 1, Transport: peer.TransportUC, QPs: 1})
	if !errors.Is(err, reliable.ErrNoCarrier) {
		t.Errorf("wrap of a NIC without UC: got %v, want ErrNoCarrier", err)
	}
	says(t, fmt.Sprint(err), "--transport: ", "soft1", "no QPs that can carry paths", "use rc")
}

// withoutSRQ is a NIC whose UC QPs cannot use an SRQ.
type withoutSRQ struct{ verbs.Context }

func (c withoutSRQ) QueryDevice() (verbs.DeviceAttr, error) {
	a, err := c.Context.QueryDevice()
	a.Capabilities &^= verbs.CapSRQOnUC
	return a, err
}

// TestPerfTransportNoSRQ: a NIC without SRQs for UC gets more receives, enough for all lanes.
func TestPerfTransportNoSRQ(t *testing.T) {
	n := softRails(t, 1)
	for end := range n.ends {
		n.ends[end][0] = ibverbx.RailConfig{Context: withoutSRQ{n.ends[end][0].Context}}
	}
	cfg, err := measure.Config{Rails: 1, QPs: 20, Sizes: []int{200000}, Iterations: 10, Transport: peer.TransportUC, Check: true}.Complete()
	enginetest.WantOK(t, "Complete", err)
	enginetest.WantOK(t, "wrap", wrap(n, &cfg))
	test, err := measure.New(n.ends[0], n.ends[1], cfg)
	enginetest.WantOK(t, "New", err)
	if r, err := test.Run(t.Context(), measure.Observer{}); err != nil || len(r.Results) != 1 || r.Results[0].Iterations != 10 {
		t.Errorf("Run: got %+v and %v, want 10 messages", r.Results, err)
	}
}

// TestPerfTransportFewerRails: a side with fewer NICs than requested places all lanes on them, with enough receives.
func TestPerfTransportFewerRails(t *testing.T) {
	n := softRails(t, 1)
	const lanes = 64
	enginetest.WantOK(t, "wrap", wrap(n, &measure.Config{Rails: 8, Transport: peer.TransportUC, QPs: lanes}))
	for end := range n.ends {
		attr, err := n.ends[end][0].Context.QueryDevice()
		if err != nil || attr.MaxQP < lanes+wrapMoreLanes {
			t.Errorf("end %d, one NIC for a test of 8 rails and %d lanes: room for %d QPs, %v; want at least %d", end, lanes, attr.MaxQP, err, lanes+wrapMoreLanes)
		}
	}
}

// TestPerfTransportLends: a client cannot make a server allocate more receive memory than --lend allows.
func TestPerfTransportLends(t *testing.T) {
	for _, tt := range []struct {
		lanes, memory int
		fits          bool
	}{{8, 64 << 20, true}, {4000, 256 << 20, false}, {100, 16 << 20, false}, {4000, 0, true}} {
		err := wrap(softRails(t, 2), &measure.Config{Rails: 2, Transport: peer.TransportUC, QPs: tt.lanes, Lend: tt.memory})
		var refused *measure.ConfigError
		if tt.fits && err != nil || !tt.fits && (!errors.As(err, &refused) || !strings.Contains(err.Error(), "larger --lend")) {
			t.Errorf("%d lanes with %d bytes lent: got %v, want them to fit: %v", tt.lanes, tt.memory, err, tt.fits)
		}
	}
}

// TestPerfTransportKillRail: lanes built from UC QPs survive the loss of a rail and recover with it.
func TestPerfTransportKillRail(t *testing.T) {
	out := succeed(t, "perf", "--transport", "uc", "-s", "256K", "-D", "1.5", "--kill-rail", "1", "--at", "0.3", "--back", "0.3")
	says(t, out, "ports of rail 1 down", "recovered: all lanes are in service", "every byte of ")
}
