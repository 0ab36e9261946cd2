package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"ibverbx/internal/perf/measure"
	"ibverbx/internal/perf/report"
)

const perfLong = `Measure bandwidth or latency over a VirtualQP: one logical queue pair whose lanes (RC QPs) are spread
over several NICs, the rails. Tables and flag names follow linux-rdma perftest.

Without HOST, both ends run in this process, on software NICs if the machine has no RDMA hardware.
With HOST, this process is the client: it decides what to measure, and "ibverbx perf serve" runs on
HOST. Both need --token-file with the same secret, or certificates (--help-all), and use software NICs
unless --provider rdmacore is set.

Bandwidth is the default. --lat measures latency instead. For write, read and atomic it is the time
from post to completion, a full round trip. For send and --imm it is half the round trip of a
ping-pong, as in ib_send_lat.

Below the results, a line per rail shows the bytes it carried, and the verdict names rails that are
slow or lose packets. Ctrl-C and SIGTERM print the results so far; the exit status is then 130 or 143.`

// perfMore is the part of the help that only --help-all prints.
const perfMore = `Bandwidth: up to --tx-depth messages are in flight. BW average is bytes over time, BW peak the best
interval of at least 0.5 ms (10 ms between processes). With --bidirectional the rates are sums.
memcpy is Go's copy between the same buffers, measured in alternation with the transfer, and ratio is
BW average over memcpy. Between processes there is no memcpy column.

Latency: t_typical is the median. It and the percentiles have three digits.

Lanes: write and read are fragmented and spread over the lanes by --policy. send and atomic use one
extra lane. With --imm the receiver is notified of each write, by --scheme: tally sends a record
behind the data on each lane, dqplb numbers the fragments, and spray sends a notification after all
data has completed. A single lane (--lanes 1) passes requests through unchanged.

-c UC and -c UD measure raw QPs on one rail. --lanes, -n and -t then count QPs, messages per QP and
messages in flight per QP. Lost messages are counted, not retransmitted. --transport uc is different:
package reliable builds each lane from 16 UC QPs, retransmits lost chunks and leaves dead paths. --transport
ud does so with UD QPs that all lanes of a NIC share, for NICs without UC.

Counters of a rail or lane: lost counts the losses that senders noticed (go-backs of RC, or chunks
with --transport uc or ud), retransmits the packets or chunks sent again. The verdict's loss is lost over
the packets sent for the first time.

--check compares every byte. Rates exclude the time for that.

--kill-rail compares every byte too. The other lanes replay the requests in flight, and the rail
rejoins when its port is up. The report has the rate of each rail over time, the rates before, during
and after the outage, and all events. With HOST, only the client's port goes down. For real NICs
leave the flag out, use --interval, and pull a cable.

--memory: a completion means that the bytes are in GPU memory. In one process the memcpy column
becomes GPU copy, the GPU's own copy between the same buffers. Real NICs register the memory as
dma-buf ("ibverbx doctor" checks that). Atomics need a target in host memory.

--pcap writes one interface per NIC and addresses packets to the RoCE v2 port, for Wireshark. Captures
exclude warm-up, except at a server that only receives.

Two processes: if lanes, fragments or MTU differ, the smaller value applies. Processes of one user on
one host use shared memory; others exchange RoCE v2 packets over UDP. Both sides print the results.

perftest's -d, -p, -F and -N work. -i, -R, -I, -l, -H and -U name their replacement.
Units: MiB = 2^20 bytes, Gb = 10^9 bits, Mpps = 10^6 messages per second, usec = 10^-6 s.`

const perfExample = `  ibverbx perf                         RDMA_WRITE, 8 B to 16 MiB, eight lanes
  ibverbx perf read -s 64K -D 5        RDMA_READ of 64 KiB for 5 seconds
  ibverbx perf send --lat              latency of SEND
  ibverbx perf --kill-rail 1           lose a NIC under load and get it back
  ibverbx perf serve --token-file t    on node1: wait for clients
  ibverbx perf node1 --token-file t    elsewhere: measure against node1`

// perfFlags are the flags of perf or of perf serve.
type perfFlags struct {
	cfg measure.Config
	fabricFlags
	// memory is the location of the buffers.
	memory   memoryFlag
	lat      bool
	out      outputFlags
	perftest perftestFlags

	auth    authFlags
	host    string // the server, empty unless this is a client
	server  bool   // this is perf serve
	listen  string
	once    bool
	metrics metricsFlags
}

// newPerf builds the perf command, with perf serve below it.
func newPerf(s streams) *cobra.Command {
	var f perfFlags
	cmd := &cobra.Command{
		Use:         "perf [write|read|send|atomic] [HOST[:PORT]]",
		Short:       "Measure bandwidth or latency",
		Long:        perfLong,
		Example:     perfExample,
		Annotations: map[string]string{helpMore: perfMore},
		ValidArgs:   []string{string(measure.Write), string(measure.Read), string(measure.Send), string(measure.Atomic)},
		Args:        func(cmd *cobra.Command, args []string) error { return f.arguments(cmd, s, args) },
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.lat {
				f.cfg.Mode = measure.Latency
			}
			if f.host != "" {
				return f.run(cmd, s, runClient)
			}
			return f.run(cmd, s, runPerf)
		},
	}
	f.defineClient(cmd)
	serve := newPerfServe(s)
	cmd.AddCommand(serve)
	cmd.SetFlagErrorFunc(flagOf(serve, "the server"))
	serve.SetFlagErrorFunc(flagOf(cmd, "the client, which decides what to measure"))
	return cmd
}

// flagOf returns a function for flag errors of one side. An unknown flag that the other side has is
// reported as such.
func flagOf(other *cobra.Command, side string) func(*cobra.Command, error) error {
	return func(cmd *cobra.Command, err error) error {
		var unknown *pflag.NotExistError
		if errors.As(err, &unknown) {
			name := unknown.GetSpecifiedName()
			f := other.Flags().Lookup(name)
			if f == nil && len(name) == 1 {
				f = other.Flags().ShorthandLookup(name)
			}
			if f != nil {
				return wrong(cmd, "--%s belongs to %s: use it with '%s'", f.Name, side, other.CommandPath())
			}
		}
		return flagError(cmd, err)
	}
}

// run prepares memory, metrics and captures for a side, and runs it.
func (f *perfFlags) run(cmd *cobra.Command, s streams, side func(context.Context, streams, *perfFlags) error) error {
	return f.during(cmd, s, func() error {
		f.Capture.Pause(true) // until the measurement starts
		gpus, err := f.openMemory()
		if err == nil {
			err = f.metrics.during(cmd.Context(), s, func() error { return side(cmd.Context(), s, f) })
		}
		return errors.Join(err, gpus.Close())
	})
}

// arguments parses an operation and a host. A word that names an operation is never a host.
func (f *perfFlags) arguments(cmd *cobra.Command, s streams, args []string) error {
	if err := notEmpty(cmd, args); err != nil {
		return err
	}
	rest := args
	if len(rest) > 0 {
		if op, err := measure.ParseOp(rest[0]); err == nil {
			f.cfg.Op, rest = op, rest[1:]
		}
	}
	if len(rest) > 0 {
		f.host, rest = rest[0], rest[1:]
	}
	if f.host != "" {
		f.auth.readEnv(&s)
	}
	_, notHost := measure.ParseOp(f.host)
	switch {
	case notHost == nil:
		return wrong(cmd, "%s: use one operation", strings.Join(args, " "))
	case len(rest) > 0:
		return wrong(cmd, "%s: use one operation and one host", strings.Join(args, " "))
	case f.host != "" && !f.auth.given() && len(args) > 1: // the first argument is the operation, so this is a host
		return wrong(cmd, "the host %s needs --token-file, with the same secret on both sides (ibverbx token makes one), or --ca, --cert and --key", f.host)
	case f.host != "" && !f.auth.given():
		return wrong(cmd, "operation %q does not exist: use write, read, send or atomic. If it is a host, both sides need --token-file, or --ca, --cert and --key", f.host)
	case f.host == "" && f.byFlag("pcap", "pcap-wire"):
		return wrong(cmd, "--pcap and --pcap-wire need a HOST: without one, packets never leave this process")
	case f.host == "" && (f.auth.given() || f.auth.name != "" || f.byFlag(onlyRemote...)):
		return wrong(cmd, "--%s and the authentication flags need a HOST", strings.Join(onlyRemote, ", --"))
	}
	return f.checkLink(cmd, s)
}

// onlyRemote are the settings for tests between two processes.
var onlyRemote = []string{"link", "addr", "peer-network", "unsealed", "require-sealed"}

// checkLink reads the environment and rejects flag combinations that two processes do not support.
func (f *perfFlags) checkLink(cmd *cobra.Command, s streams) error {
	if err := f.readEnv(cmd, s); err != nil {
		return err
	}
	f.cfg.Rails, f.cfg.QPs, f.cfg.Transport, f.cfg.Impair = f.RailCount, f.Lanes, f.Transport, f.Impair
	if len(f.memory) > 1 && (f.host != "" || f.server) {
		return wrong(cmd, "--memory %s: two places are for both ends in one process; give each of two processes its own", strings.Join(f.memory, ","))
	}
	return f.usePort(cmd)
}

// runPerf measures between two ends in this process.
func runPerf(ctx context.Context, s streams, f *perfFlags) (err error) {
	cfg, err := f.cfg.Complete()
	if err != nil {
		return err
	}
	notes := s.err
	if f.out.json {
		notes = io.Discard
	}
	from, err := f.choose(notes)
	if err != nil {
		return err
	}
	n, err := from.open(cfg.Rails, cfg.Impair)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	for end := range n.ends {
		if err := f.prepare(&cfg, n, end); err != nil {
			return err
		}
	}
	test, err := measure.New(n.ends[0], n.ends[1], cfg)
	if err != nil {
		return err
	}
	return show(ctx, s, f, test, "")
}

// show runs a test and prints it. remote is the address of the other process, empty in a test within one process. If ctx is done early,
// show prints partial results, and the error is errInterrupted or errTerminated.
func show(ctx context.Context, s streams, f *perfFlags, test *measure.Test, remote string) error {
	tidy, err := f.out.writable()
	if err != nil {
		return err
	}
	defer tidy()
	web, err := newPerfPage(f.out.web)
	if err != nil {
		return err
	}
	line := newProgressLine(s.err)
	var progress perfProgress
	o := measure.Observer{Progress: func(p measure.Progress) { line.write(progress.text(p, time.Now())) }, Paths: pathsOf, Health: healthOf, Measuring: func(on bool) { f.Capture.Pause(!on) }, Interval: f.out.span(&f.cfg)}
	o.Opened = f.metrics.opened(remote)
	if web != nil {
		o.Snapshot = web.look
	}
	run := runOf(s.args)
	complete := func(r *measure.Report) {
		run.Options = r.Run.Options
		r.Run, r.Remote, r.Settings, r.Table.Paths = run, remote, f.given(), wrapPaths(&f.Reliable)
		if len(r.Results) > 0 {
			r.Verdict = report.Verdict(r)
		}
	}
	var t *perfTable
	o.Head = func(r measure.Report) {
		line.clear()
		complete(&r)
		web.head(ctx, s, &r)
		if !f.out.json {
			t = newPerfTable(s, r, f)
		}
	}
	if !f.out.json && f.out.interval > 0 {
		o.Span = func(size int, span measure.Span) { line.clear(); t.span(size, span) }
	}
	if !f.out.json {
		o.Result = func(r measure.Result) { line.clear(); t.row(r) }
	}
	result, err := test.Run(ctx, o)
	line.clear()
	complete(&result)
	err = web.end(&result, err)
	ended := ctx.Err() != nil && len(result.Results) > 0 // a stopped server has an error, and the rows before it
	result.Interrupted = result.Interrupted || ended && err != nil
	switch {
	case f.out.json && (err == nil || ended):
		err = errors.Join(err, printJSON(s.out, &result))
	case t != nil:
		err = errors.Join(err, t.end(result, err))
	}
	if err == nil || ended {
		err = errors.Join(err, f.out.save(&result))
	}
	if err == nil && result.Interrupted && !f.server {
		err = fmt.Errorf("%w: measured %d of %d sizes, the last perhaps in part", stopped(ctx, errInterrupted), len(result.Results), len(test.Sizes()))
	}
	return err
}
