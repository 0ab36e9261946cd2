package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"ibverbx/internal/perf"
)

const perfLong = `Measure what two RDMA NICs in this process do with each other's memory. Tables,
flags and words are those of linux-rdma perftest.

Bandwidth (the default): each QP keeps --tx-depth requests in flight, posted as
chains of --cq-mod with one completion each. BW average is bytes over time, BW peak
the best stretch of at least 0.5 ms, MsgRate messages over time; with several QPs or
--bidirectional they are sums. memcpy is Go's copy between the same buffers, measured
in turns with the transfer in the same run, and ratio is BW average over memcpy.

Latency (--lat): one message in flight on one QP. write, read and atomic: from the
post to the completion in hand, a full round trip. send: half of the round trip of a
ping-pong, as ib_send_lat. t_typical is the median; percentiles are exact.

--check fills every message with a pattern of its own and compares every byte that
arrives; the time for that is not counted. Atomics are fetch-and-add on 8 bytes.

Units: MiB = 2^20 bytes, Gb = 10^9 bits, Mpps = 10^6 messages per second, usec = 10^-6 s.
Ctrl-C prints what was measured so far and ends with status 130.`

const perfExample = `  ibverbx perf                        RDMA_WRITE, 8 B to 16 MiB, a few seconds
  ibverbx perf read -s 64KiB -D 5     RDMA_READ of 64 KiB for 5 seconds
  ibverbx perf send -c UD -a          SEND over UD, every size up to the MTU
  ibverbx perf -s 8 -q 16             8-byte messages over 16 QPs
  ibverbx perf -s 8,4K,1M -n 5000     three sizes, 5000 messages each
  ibverbx perf --lat                  latency of RDMA_WRITE
  ibverbx perf --check -b             both directions at once, every byte compared
  ibverbx perf --json | jq .results   for machines`

// perfFlags are the flags of perf as they are given.
type perfFlags struct {
	cfg   perf.Config
	lat   bool
	json  bool
	gbits bool
}

// newPerf builds the perf command.
func newPerf(s streams) *cobra.Command {
	var f perfFlags
	cmd := &cobra.Command{
		Use:       "perf [write|read|send|atomic]",
		Short:     "Measure bandwidth or latency",
		Long:      perfLong,
		Example:   perfExample,
		ValidArgs: []string{string(perf.Write), string(perf.Read), string(perf.Send), string(perf.Atomic)},
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return &usageError{command: cmd.CommandPath(), err: fmt.Errorf("one operation at a time, got %q and %q", args[0], args[1])}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if len(args) == 1 {
				if f.cfg.Op, err = perf.ParseOp(args[0]); err != nil {
					return err
				}
			}
			if f.lat {
				f.cfg.Mode = perf.Latency
			}
			return runPerf(cmd.Context(), s, &f)
		},
	}
	fl := cmd.Flags()
	fl.SortFlags = false
	c := &f.cfg
	fl.VarP((*sizes)(&c.Sizes), "size", "s", "message `size`, or several with commas: 65536, 64KiB, 8,4K,1M (default: a short sweep)")
	fl.BoolVarP(&c.All, "all", "a", false, "all sizes from 2 to 2^23 bytes in powers of two")
	fl.VarP((*count)(&c.Iterations), "iters", "n", "`messages` per QP and size (default: as many as --duration allows)")
	fl.VarP((*seconds)(&c.Duration), "duration", "D", "`time` to measure each size, in seconds or as 500ms (default 200ms)")
	fl.VarP((*count)(&c.QPs), "qp", "q", "number of `QPs` (default 1)")
	fl.VarP((*count)(&c.TxDepth), "tx-depth", "t", "`requests` in flight per QP (default 128, fewer if that is more than 16 MiB)")
	fl.VarP((*count)(&c.CQMod), "cq-mod", "Q", "`requests` per chain, doorbell and completion (default by size, at most 64)")
	fl.VarP((*count)(&c.MTU), "mtu", "m", "path MTU in `bytes`: 256, 512, 1024, 2048 or 4096 (default: of the ports; the memory link cuts nothing)")
	fl.VarP((*connection)(&c.Connection), "connection", "c", "`transport`: RC, UC (write, send) or UD (send) (default RC)")
	fl.BoolVarP(&c.Bidirectional, "bidirectional", "b", false, "both ends send at once; rates are sums")
	fl.BoolVar(&c.Check, "check", false, "compare every byte that arrives")
	fl.BoolVar(&f.lat, "lat", false, "measure latency instead of bandwidth")
	fl.BoolVar(&f.gbits, "report_gbits", false, "rates in Gb/sec instead of MiB/sec")
	fl.BoolVar(&f.json, "json", false, "print one JSON object; bytes and seconds, not MiB")
	return cmd
}

// runPerf measures and prints. If ctx ends early what was measured is printed, and the
// error is errInterrupted.
func runPerf(ctx context.Context, s streams, f *perfFlags) (err error) {
	n, err := openNICs()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	test, err := perf.New(n.contexts[0], n.contexts[1], f.cfg)
	if err != nil {
		return err
	}
	line := newProgressLine(s.err)
	var report perf.Report
	if f.json {
		report, err = test.Run(ctx, perf.Observer{Progress: line.show})
		line.clear()
		if err == nil {
			err = printJSON(s.out, report)
		}
	} else {
		t := newPerfTable(s.out, test.Head(), f.gbits)
		report, err = test.Run(ctx, perf.Observer{
			Progress: line.show,
			Result:   func(r perf.Result) { line.clear(); t.row(r) },
		})
		line.clear()
		err = errors.Join(err, t.end(report))
	}
	if err != nil {
		return err
	}
	if report.Interrupted {
		return fmt.Errorf("%w: measured %d of %d sizes, the last perhaps in part", errInterrupted, len(report.Results), len(test.Sizes()))
	}
	return nil
}
