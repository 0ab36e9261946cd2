package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"ibverbx/internal/pcap"
	"ibverbx/internal/perf"
)

const perfLong = `Measure what a VirtualQP between two ends in this process does with the memory of the
other end. Each end has --rails NICs, and --qp lanes (RC QPs) are spread over them;
requests are cut into fragments that the lanes carry side by side. Tables, flags and
words are those of linux-rdma perftest.

Bandwidth (the default): up to --tx-depth messages are in flight, posted --cq-mod at a
time, of which the last asks for a completion. BW average is bytes over time, BW peak
the best stretch of at least 0.5 ms, MsgRate messages over time; with --bidirectional
they are sums. memcpy is Go's copy between the same buffers, measured in turns with the
transfer in the same run, and ratio is BW average over memcpy.

Latency (--lat): one message in flight. write, read and atomic: from the post to the
completion in hand, a full round trip. send, and write with --imm:
half of the round trip of a ping-pong, as ib_send_lat. t_typical is the median;
percentiles are exact.

Lanes: write and read are cut and spread by --policy; send and atomic go over one lane
of their own, the message lane. --imm tells the receiver of each write (WRITE_WITH_IMM),
by --scheme: tally sends a record behind the data on each lane, dqplb numbers the
fragments, spray sends a notification when all data is complete. A single lane (-q 1)
passes requests straight through: nothing is cut, and no scheme is needed. The tables
below the results say what each rail and each lane carried.

-c UC and -c UD measure such QPs by themselves, on one rail: a VirtualQP is made of RC
QPs. There -q, -n and -t count QPs, messages per QP and messages in flight per QP.

--transport uc is something else than -c UC. With -c UC the QPs are raw: what is lost is lost,
and the messages that did not arrive are counted. --transport uc makes every RC QP, and so every
lane, of 16 UC QPs, with reliability in software (package reliable): chunks travel on all of them,
what is lost is sent again, a path that dies is left, and every operation, read and atomic too,
works as on RC. The NICs need UC, which not all have.

--check fills every message with a pattern of its own and compares every byte that
arrives; the time for that is not counted. Atomics are fetch-and-add on 8 bytes.

--kill-rail takes the ports of a rail down in the midst of one transfer, --at a time after
its start, and up again --back later; every byte is compared all along. The lanes of the
other rails carry on, take over what was under way, and give back when the rail returns.
Below the tables: the rate of each rail over time, the rates before, during and after the
outage, and what happened when. Rates leave out the time for making and comparing
patterns. Software NICs work on the core of the caller: there one rail alone moves as much
as two.

Two processes, on one host or two: --server waits for clients on port 18515, serves them one
after the other until Ctrl-C, and turns away whoever cannot prove itself; HOST makes this the
client, who says what is measured. Both have --token-file with the same secret, or certificates
(ibverbx cert). What the two sides' flags say of lanes, fragments and MTU is settled between them,
the smaller counts; both print the results. NICs are software ones that speak RoCE v2 over UDP, on
the address of the connection or on those of --addr; --provider rdmacore takes real ones. Lanes
that are lost come back. There is no memcpy to compare with.

Units: MiB = 2^20 bytes, Gb = 10^9 bits, Mpps = 10^6 messages per second, usec = 10^-6 s.
Ctrl-C prints what was measured so far and ends with status 130.`

const perfExample = `  ibverbx perf                        RDMA_WRITE, 8 B to 16 MiB, two rails, eight lanes
  ibverbx perf -q 1                   the same over one QP, straight through
  ibverbx perf --rails 4 -q 64 -s 1M  64 lanes on four rails
  ibverbx perf --imm --scheme dqplb   notified writes, numbered fragments
  ibverbx perf --imm --lat            half of a ping-pong of notified writes
  ibverbx perf -s 16M --fragment 64K --policy least-bytes
  ibverbx perf read -s 64KiB -D 5     RDMA_READ of 64 KiB for 5 seconds
  ibverbx perf send -c UD -a          SEND over UD, every size up to the MTU
  ibverbx perf --transport uc --check every lane made of 16 UC QPs, reliable in software
  ibverbx perf -c UC -q 16            16 raw UC QPs, nothing repaired
  ibverbx perf -s 8,4K,1M -n 5000     three sizes, 5000 messages each
  ibverbx perf --check -b             both directions at once, every byte compared
  ibverbx perf -D 6 --kill-rail 1 --at 2s
                                      lose a NIC under load, go on, take it back
  ibverbx perf --json | jq .per_rail  for machines
  ibverbx perf --server --token-file t      on one host, and on another
  ibverbx perf read node1 --token-file t    RDMA_READ from the first
  ibverbx perf -n 5 -s 8K node1 --token-file t --pcap roce.pcap
                                      and its packets, for tshark or Wireshark`

// perfFlags are the flags of perf as they are given.
type perfFlags struct {
	cfg     perf.Config
	nics    providerFlags
	lat     bool
	json    bool
	gbits   bool
	verbose bool

	// Between processes.
	auth   authFlags
	host   string // of the server, for a client
	server bool
	listen string
	once   bool
	addrs  []string
	// pcap names a file for the packets of software NICs, and capture is what writes it.
	pcap    string
	capture *pcap.Writer
}

// newPerf builds the perf command.
func newPerf(s streams) *cobra.Command {
	var f perfFlags
	cmd := &cobra.Command{
		Use:       "perf [write|read|send|atomic] [HOST[:PORT]]",
		Short:     "Measure bandwidth or latency",
		Long:      perfLong,
		Example:   perfExample,
		ValidArgs: []string{string(perf.Write), string(perf.Read), string(perf.Send), string(perf.Atomic)},
		Args:      func(cmd *cobra.Command, args []string) error { return f.arguments(cmd, args) },
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if f.lat {
				f.cfg.Mode = perf.Latency
			}
			switch {
			case f.server:
				return f.captured(cmd.Context(), s, runServer)
			case f.host != "":
				return f.captured(cmd.Context(), s, runClient)
			}
			return runPerf(cmd.Context(), s, &f)
		},
	}
	f.define(cmd, s)
	return cmd
}

// arguments takes an operation and a host. A word that is exactly an operation is one.
func (f *perfFlags) arguments(cmd *cobra.Command, args []string) error {
	wrong := func(format string, more ...any) error {
		return &usageError{command: cmd.CommandPath(), err: fmt.Errorf(format, more...)}
	}
	rest := args
	if len(rest) > 0 {
		if op, err := perf.ParseOp(rest[0]); err == nil {
			f.cfg.Op, rest = op, rest[1:]
		}
	}
	if len(rest) > 0 {
		f.host, rest = rest[0], rest[1:]
	}
	_, notHost := perf.ParseOp(f.host)
	switch {
	case notHost == nil:
		return wrong("one operation at a time, got %q", args)
	case len(rest) > 0:
		return wrong("one operation and one host at a time, got %q", args)
	case f.server && len(args) > 0:
		return wrong("--server takes what clients ask for, got %q; say it at the client", args[0])
	case f.server && f.lat:
		return wrong("--server takes what clients ask for; say --lat at the client")
	case f.server && f.cfg.Transport != "":
		return wrong("--server takes what clients ask for; say --transport at the client")
	case !f.server && (f.listen != "" || f.once || f.cfg.Lend != 0):
		return wrong("--listen, --once and --lend are for --server")
	case f.host != "" && f.auth == authFlags{}:
		return wrong("there is no operation %q; say write, read, send or atomic. If it is a host, both sides need --token-file, or --ca, --cert and --key", f.host)
	case f.host == "" && !f.server && f.pcap != "":
		return wrong("--pcap is for tests between two processes: in one process there are no packets on a wire")
	case f.host == "" && !f.server && (f.auth != authFlags{} || len(f.addrs) > 0):
		return wrong("there is no other process without a host or --server: drop the flags for one, or name it")
	}
	return nil
}

// runPerf measures between two ends in this process.
func runPerf(ctx context.Context, s streams, f *perfFlags) (err error) {
	cfg, err := f.cfg.Complete()
	if err != nil {
		return err
	}
	from, why, err := f.nics.choose()
	if err != nil {
		return err
	}
	if why != "" && !f.json {
		fmt.Fprintf(s.err, "provider: %s\n", why)
	}
	n, err := from.open(cfg.Rails)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	if err := n.wrap(cfg.Wish()); err != nil {
		return err
	}
	cfg.Kill.SetPort = n.setPort
	test, err := perf.New(n.ends[0], n.ends[1], cfg)
	if err != nil {
		return err
	}
	return show(ctx, s, f, test, "")
}

// show runs a test and prints it. remote is the address of the other process, empty if there is
// none. If ctx ends early what was measured is printed, and the error is errInterrupted.
func show(ctx context.Context, s streams, f *perfFlags, test *perf.Test, remote string) error {
	line := newProgressLine(s.err)
	o := perf.Observer{Progress: line.show}
	var t *perfTable
	if !f.json {
		o.Head = func(r perf.Report) {
			line.clear()
			r.Remote = remote
			t = newPerfTable(s.out, r, f)
		}
		o.Result = func(r perf.Result) { line.clear(); t.row(r) }
	}
	report, err := test.Run(ctx, o)
	line.clear()
	report.Remote = remote
	switch {
	case f.json && err == nil:
		err = printJSON(s.out, report)
	case t != nil:
		err = errors.Join(err, t.end(report))
	}
	if err == nil && report.Interrupted && !f.server {
		err = fmt.Errorf("%w: measured %d of %d sizes, the last perhaps in part", errInterrupted, len(report.Results), len(test.Sizes()))
	}
	return err
}
