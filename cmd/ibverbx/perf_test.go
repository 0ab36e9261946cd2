package main

import (
	"bytes"
	"context"
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"

	"ibverbx/internal/enginetest"
	"ibverbx/internal/perf/measure"
)

func TestPerfRows(t *testing.T) {
	out := succeed(t, "perf", "-s", "8,64KiB,1M", "-n", "200")
	if line := lineWith(out, "memcpy at 1 MiB"); !regexp.MustCompile(`: [0-9.]+ MiB/sec \([0-9.]+ GB/s\); ratio is BW average to memcpy$`).MatchString(line) {
		t.Errorf("the memcpy line is %q, want a rate at 1 MiB", line)
	}
	for _, size := range []string{"8", "65536", "1048576"} {
		line := ""
		for row := range strings.Lines(out) {
			if strings.HasPrefix(row, " "+size+"  ") && line == "" {
				line = row
			}
		}
		if f := strings.Fields(line); len(f) != 6 || f[0] != size || f[1] != "200" {
			t.Errorf("the row of %s is %q, want 6 columns and 200 iterations", size, line)
		}
	}
}

func TestPerfOperations(t *testing.T) {
	for _, args := range []string{
		"send -c UD -s 64,2K", "write -c UC -s 8K", "send -c UC -s 100", "write -c UC -q 4 -b -s 64,8K", "send -c UD -q 4 -b -s 64,2K",
		"write -q 4 -b -s 64,8K", "send -q 4 -b -s 64,8K", "write -m 512 -s 8K", "write -t 7 -Q 3 -s 8", "write -a -n 2",
		"write --imm -b -s 64,100K", "write --rails 8 -s 1M -n 5", "write --imm -q 100 -s 1M -n 5", "read --fragment 1000 -s 64K",
		"write --imm --fragment 100 -s 10K --scheme dqplb", "write --policy two-choices -s 1M -n 5",
		"send --lat -c UD -s 64", "write --lat -c UC -s 64", "write --provider softnic -s 8",
	} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			words := append([]string{"perf"}, strings.Fields(args)...)
			if !slices.Contains(words, "-n") {
				words = append(words, "-n", "100")
			}
			succeed(t, append(words, "--check")...)
		})
	}
}

// Every operation in every scheme over one and two rails, one and several lanes, for
// bandwidth and latency, every byte compared.
func TestPerfMatrix(t *testing.T) {
	for _, op := range []string{"write", "write --imm", "read", "send", "atomic"} {
		for _, scheme := range schemeNames {
			for _, shape := range []string{"--rails 1 -q 1", "--rails 1 -q 3", "--rails 2 -q 1", "--rails 2 -q 5"} {
				for _, mode := range []string{"", "--lat"} {
					args := strings.Join([]string{op, "--scheme", scheme, shape, mode}, " ")
					t.Run(args, func(t *testing.T) {
						t.Parallel()
						words := append([]string{"perf", "-n", "20", "--check"}, strings.Fields(args)...)
						if op != "atomic" {
							words = append(words, "-s", "8,40000")
						}
						succeed(t, words...)
					})
				}
			}
		}
	}
}

// cancelling is a writer that cancels when a text goes by.
type cancelling struct {
	bytes.Buffer
	text   string
	cancel func()
}

func (c *cancelling) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte(c.text)) {
		c.cancel()
	}
	return c.Buffer.Write(b)
}

func TestPerfInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	out := &cancelling{text: " 64  ", cancel: cancel}
	var stderr bytes.Buffer
	status := run(ctx, []string{"perf", "-s", "8,64,512", "-n", "100"}, streams{out: out, err: &stderr, provider: providerSoftNIC})
	if status != exitInterrupted {
		t.Errorf("status %d, want %d", status, exitInterrupted)
	}
	if lineWith(out.String(), " 64  ") == "" || lineWith(out.String(), " 512  ") != "" || !strings.Contains(out.String(), "memcpy at 64 B") {
		t.Errorf("want the rows of 8 and 64 and the lines below, got\n%s", out.String())
	}
	if want := "ibverbx: interrupted: measured 2 of 3 sizes"; !strings.Contains(stderr.String(), want) {
		t.Errorf("stderr is %q, want %q", stderr.String(), want)
	}
}

func TestPerfInterruptedBeforeAnything(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for _, args := range [][]string{{"perf"}, {"perf", "--json"}, {"perf", "--lat"}} {
		status, out, stderr := command(ctx, args...)
		if status != exitInterrupted || !strings.Contains(stderr, "interrupted") {
			t.Errorf("%v: status %d, stderr %q", args, status, stderr)
		}
		if slices.Contains(args, "--json") {
			var v struct {
				Interrupted bool
				Results     []any
			}
			if err := json.Unmarshal([]byte(out), &v); err != nil || !v.Interrupted || v.Results == nil {
				t.Errorf("%v: %v in %s", args, err, out)
			}
		}
	}
}

func TestPerfFlagErrors(t *testing.T) {
	for _, tt := range []struct {
		args string
		want []string // parts of stderr
	}{
		{"--rails 9", []string{"--rails 9", "use 1 to 8"}},
		{"--rails 0", []string{"--rails", "use 1 to 8"}},
		{"--rails two", []string{"--rails two"}},
		{"--rails 2 -c UC", []string{"--rails 2", "RC QPs", "--connection RC"}},
		{"-q 0", []string{"--lanes", "use 1 to 4094"}},
		{"-q 5000", []string{"--lanes 5000", "lanes", "use 1 to 4094"}},
		{"--lat -c UC -q 2", []string{"--lanes 2", "--lat"}},
		{"--scheme x", []string{"--scheme x", "tally, dqplb or spray"}},
		{"--policy x", []string{"--policy x", "round-robin or two-choices"}},
		{"--fragment 3GiB", []string{"--fragment 3221225472", "1 GiB", "or 0"}},
		{"--fragment 64KB", []string{"--fragment", "64KiB"}},
		{"--fragment much", []string{"--fragment much", "64KiB"}},
		{"--fragment 4K -q 1", []string{"--fragment 4096", "--lanes 2"}},
		{"send --fragment 4K", []string{"--fragment 4096", "one lane"}},
		{"read --imm", []string{"--imm", "WRITE_WITH_IMM", "measure write"}},
		{"-q 1 -s 3G", []string{"--size 3221225472", "1 GiB", "--lanes 2"}},
		{"--provider x", []string{"--provider x", "softnic, rdmacore or auto"}},
	} {
		refused(t, "perf "+tt.args, append(tt.want, "Run 'ibverbx perf --help'")...)
	}
}

func TestPerfHelp(t *testing.T) {
	out := strings.Join(strings.Fields(succeed(t, "perf", "--help-all")), " ")
	says(t, out,
		"VirtualQP", "--rails NICs", "--lanes number", "--scheme name", "--policy name", "--fragment size", "--imm", "--provider NICs",
		"tally, dqplb or spray", "passes requests through unchanged", "-v, --verbose",
	)
}

// TestPerfCompletesValues: the shell is given the values of flags that have few.
func TestPerfCompletesValues(t *testing.T) {
	for flag, want := range map[string]string{
		"scheme": "tally\ndqplb\nspray\n", "connection": "RC\nUC\nUD\n", "transport": "rc\nuc\n", "link": "auto\nshm\nudp\n",
		"provider": "softnic\nrdmacore\nauto\n", "policy": "auto\nround-robin\n", "mtu": "256\n512\n",
	} {
		if status, out, _ := command(t.Context(), "__complete", "perf", "--"+flag, ""); status != exitOK || !strings.HasPrefix(out, want) {
			t.Errorf("--%s is completed with status %d and %q, want %q", flag, status, out, want)
		}
	}
}

// reportOf runs perf and returns its report.
func reportOf(t *testing.T, args ...string) (r measure.Report) {
	t.Helper()
	status, out, stderr := command(t.Context(), append([]string{"perf", "--json"}, args...)...)
	if err := json.Unmarshal([]byte(out), &r); status != exitOK || err != nil {
		t.Fatalf("perf %q: status %d, %s, %v", args, status, stderr, err)
	}
	return r
}

// softRails opens software NICs of both ends, until the test ends.
func softRails(t *testing.T, rails int) *nics {
	t.Helper()
	n, err := softNICs{}.open(rails, nil)
	enginetest.WantOK(t, "open", err)
	t.Cleanup(func() {
		enginetest.WantOK(t, "close", n.close())
	})
	return n
}

// Software NICs of a rail share a link, and rails share none.
func TestSoftNICs(t *testing.T) {
	n := softRails(t, 3)
	var names []string
	for _, ctx := range n.contexts() {
		names = append(names, ctx.Device().Name())
	}
	if want := []string{"soft0", "soft1", "soft2", "soft3", "soft4", "soft5"}; !slices.Equal(names, want) {
		t.Errorf("the NICs are %v, want %v", names, want)
	}
	for end := range n.ends {
		for i, rail := range n.ends[end] {
			if rail.Context != n.contexts()[2*i+end] {
				t.Errorf("rail %d of end %d is %s, want %s", i, end, rail.Context.Device().Name(), names[2*i+end])
			}
			attr, err := rail.Context.QueryDevice()
			enginetest.WantOK(t, "QueryDevice", err)
			// The last bits of a GUID count the NICs of a link.
			if got := uint64(attr.NodeGUID) & 0xffff; got != uint64(end+1) {
				t.Errorf("rail %d of end %d is NIC %d of its link, want %d", i, end, got, end+1)
			}
		}
	}
}
