package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"ibverbx/internal/perf"
	"ibverbx/peer"
	"ibverbx/settings"
)

const perfLong = `Measure what a VirtualQP does between two ends in this process. Each end has --rails NICs,
and --qp lanes (RC QPs) are spread over them. Requests are cut into fragments, which the lanes
carry in parallel. Tables and flags are those of linux-rdma perftest.

Bandwidth (the default): up to --tx-depth messages are in flight. They are posted --cq-mod at a
time, and the last of them asks for a completion. BW average is bytes over time, BW peak the best
stretch of at least 0.5 ms, MsgRate messages over time; with --bidirectional they are sums. memcpy
is Go's copy between the same buffers, measured in turns with the transfer, and ratio is BW average
over memcpy.

Latency (--lat): one message is in flight. For write, read and atomic it is the time from the post
to the completion, a full round trip. For send, and write with --imm, it is half of the round trip
of a ping-pong, as ib_send_lat. t_typical is the median. Percentiles are exact for up to 2 million
messages, and have three digits beyond that.

--interval prints the rate of each rail while a size is measured. --web shows rates, latency,
retransmits and events of rails and lanes as a page of this host, at an address that it prints.
--html writes set-up, tables and charts to one file that can be mailed.
--json has the rates as a timeline, for --lat histograms ("hdr" is for libraries of HdrHistogram;
"ibverbx compare" adds up those of several runs), and where, when and with which options the test
ran. --csv has a line for each size.

Lanes: write and read are cut and spread by --policy. send and atomic use one extra lane, the
message lane. --imm notifies the receiver of each write (WRITE_WITH_IMM), by --scheme: tally sends
a record behind the data on each lane, dqplb numbers the fragments, and spray sends a notification
when all data is complete. A single lane (-q 1) passes requests straight through: nothing is cut,
and no scheme is needed. A line shows what each rail carried, and with -v, or if they differ, each lane.

Settings of the fabric, from --tclass to --uc-give-up, are those of this side; give them on both
sides. Each can also be an environment variable, which its flag overrides. ack-timeout, retry,
rnr-retry and rnr-timer are for RC. Those that begin with uc are for --transport uc. The traffic
class and the hop limit show in --pcap.

-c UC and -c UD measure raw QPs on one rail, because a VirtualQP is made of RC QPs. -q, -n and -t
then count QPs, messages per QP and messages in flight per QP. Lost messages are counted, not
retransmitted.

--transport uc differs from -c UC: it makes every RC QP, and so every lane, of 16 UC QPs with
reliability in software (package reliable). Chunks travel on all of them, lost ones are
retransmitted, a dead path is left, and every operation works as on RC. The NICs need UC. -v and
--json show round trip time, queue delay and losses of every path, so that a bad one can be found.

Health: the verdict says in words which rail is slow, loses or drops packets. Below each rail, and
with -v each lane, stands what its NICs counted at both ends: lost packets, retransmits, timeouts,
NAKs, RNRs (no receive was posted), bad ICRCs, drops, and with --transport uc round trip times.
--json has all of it. Real NICs show no counters here.

--metrics serves counters of sessions, rails, NICs and peers for Prometheus while the test runs, on
both sides of two processes. What earlier clients of a server did is included.

--memory cuda:0 has the buffers of both ends in memory of the first GPU ("ibverbx devices" lists GPUs).
host,cuda:0 has those of the initiator in memory of the host, and those of the target on the GPU. Between
processes each side has its own --memory. A completion means that the bytes are in place on the GPU. GPU copy is the rate at which
the GPU copies between the same buffers, in one process; memory of the host is pinned for it. A GPU copies the
messages of a chain together, so a chain has up to 4 MiB unless --cq-mod is given. --check copies each
message to or from the host. Real NICs register the memory as dma-buf ("ibverbx doctor" says whether
that works). Atomics on memory of a GPU are refused.

--check fills every message with its own pattern and compares every byte that arrives. Rates leave
out the time for that. Atomics are fetch-and-add on 8 bytes.

--pcap writes the packets of software NICs between processes for Wireshark: before they are sealed,
to the port of RoCE v2, with one interface for each NIC. --pcap-wire writes what is on the wire.
Warm-up is left out, except at a server that only receives.

--kill-rail takes the ports of a rail down during one transfer, --at a time after its start, and up
again --back later, or as soon after that as there was traffic to judge by. Every byte is compared. The lanes of the other rails go on, replay what was in
flight, and share the load again when the rail is back. The report shows the rate of each rail over
time, the rates before, during and after the outage, and all events. Software NICs use the core of
the caller, so one rail alone moves as much as two. With HOST, the port of the client's NIC goes down.
Ports of real NICs cannot be taken down here: leave --kill-rail out, use --interval, and pull a cable.

--impair makes software NICs lose, duplicate, reorder, corrupt or delay packets, or limits their rate,
on one rail or on all, in both directions. With HOST the server's NICs do the same, over UDP. Packets of
real NICs do not pass through this program, so they cannot be impaired.

Two processes: --server waits for clients on port 18515 and serves them one after the other until
Ctrl-C or SIGTERM. HOST makes this the client, which decides what is measured. Both sides need --token-file
with the same secret (ibverbx token makes one), or certificates (ibverbx cert). If the flags of the two
sides differ in lanes, fragments or MTU, the smaller value counts. Both sides print the results. The NICs are software ones
that speak RoCE v2 over UDP, on the address of the connection or on those of --addr. Processes of one user on one host
use shared memory instead, unless --link says otherwise. --provider rdmacore takes real NICs. Lost lanes are rebuilt. There is no memcpy to compare with.

perftest's -d, -p, -F and -N are understood. Its other flags that are not here are answered with what
to use instead.

Units: MiB = 2^20 bytes, Gb = 10^9 bits, Mpps = 10^6 messages per second, usec = 10^-6 s.
Ctrl-C and SIGTERM print what was measured so far and end with status 130; a server ends with 0.`

const perfExample = `  ibverbx perf                        RDMA_WRITE, 8 B to 16 MiB, eight lanes
  ibverbx perf -q 1                   the same over one QP
  ibverbx perf --rails 4 -q 64 -s 1M  64 lanes on four rails
  ibverbx perf --imm --scheme dqplb   notified writes, numbered fragments
  ibverbx perf --imm --lat            half of a ping-pong of notified writes
  ibverbx perf -s 16M --fragment 64K --policy least-bytes
  ibverbx perf read -s 64KiB -D 5     RDMA_READ of 64 KiB for 5 seconds
  ibverbx perf send -c UD -a          SEND over UD, every size up to the MTU
  ibverbx perf --transport uc --check every lane is made of 16 UC QPs
  ibverbx perf -c UC -q 16            16 raw UC QPs, nothing is retransmitted
  ibverbx perf -s 8,4K,1M -n 5000     three sizes, 5000 messages each
  ibverbx perf --check -b             both directions, every byte compared
  ibverbx perf -D 6 --kill-rail 1 --at 2s
                                      lose a NIC under load, go on, take it back
  ibverbx perf --impair rail=1,loss=1%,delay=1ms
                                      one rail loses and delays packets
  ibverbx perf -s 1M -D 60 --interval 1s
                                      the rate of each rail every second
  ibverbx perf -s 1M -D 600 --web     the same in a browser
  ibverbx perf --lat --html lat.html  a report with charts
  ibverbx perf --json | jq .per_rail  for programs
  ibverbx perf --memory cuda:0 -q 1   between buffers of a GPU
  ibverbx perf --memory host,cuda:0   from the host to a GPU
  ibverbx perf --tclass 104 -x 3      DSCP 26, from row 3 of the GID table
  ibverbx perf --server --token-file t      on node1
  ibverbx perf read node1 --token-file t    elsewhere: RDMA_READ from node1
  ibverbx perf --server --token-file t --metrics :9100
                                      the same, with node1:9100/metrics
  ibverbx perf -n 5 -s 8K node1 --token-file t --pcap roce.pcapng
                                      the packets too, for tshark or Wireshark`

// perfFlags are the flags of perf as they are given.
type perfFlags struct {
	cfg  perf.Config
	nics providerFlags
	// memory is where the buffers are.
	memory memoryFlag
	// settings are those of flags and, from readEnv on, of the environment.
	settings settings.Settings
	lat      bool
	out      outputFlags
	perftest perftestFlags

	auth   authFlags
	host   string // the server, empty unless this is a client
	server bool
	listen string
	once   bool
	link   peer.Link
	addrs  []string // of software NICs between processes, by rail
	// networks are those that the other side's NICs may be on, beside those of this host.
	networks []net.IPNet
	// unsealed turns off the sealing of packets.
	unsealed bool
	capture  captureFlags
	metrics  metricsFlags
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
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.lat {
				f.cfg.Mode = perf.Latency
			}
			if err := f.readEnv(cmd, s); err != nil {
				return err
			}
			if err := f.placed(); err != nil {
				return err
			}
			run := runPerf
			switch {
			case f.server:
				run = runServer
			case f.host != "":
				run = runClient
			}
			gpus, err := f.openMemory()
			if err == nil {
				err = f.metrics.during(cmd.Context(), s, func() error { return f.captured(cmd.Context(), s, run) })
			}
			return errors.Join(err, gpus.Close())
		},
	}
	f.define(cmd, s)
	return cmd
}

// arguments takes an operation and a host. A word that names an operation is never a host.
func (f *perfFlags) arguments(cmd *cobra.Command, args []string) error {
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
		return wrong(cmd, "use one operation, got %q", args)
	case len(rest) > 0:
		return wrong(cmd, "use one operation and one host, got %q", args)
	case f.server && len(args) > 0:
		return wrong(cmd, "%q is for the client: --server measures what clients ask for", args[0])
	case f.server && f.lat:
		return wrong(cmd, "--lat is for the client: --server measures what clients ask for")
	case f.server && f.cfg.Transport != "":
		return wrong(cmd, "--transport is for the client: --server measures what clients ask for")
	case f.server && (f.out.web || f.out.html != ""):
		return wrong(cmd, "--web and --html are for the client: use them where the test is started")
	case f.server && len(f.cfg.Impair) > 0:
		return wrong(cmd, "--impair is for the client: its packets and those of the server are impaired")
	case !f.server && (f.listen != "" || f.once || f.cfg.Lend != 0):
		return wrong(cmd, "--listen, --once and --lend are for --server")
	case f.out.json && f.out.csv:
		return wrong(cmd, "use one of --json and --csv")
	case f.host != "" && f.auth == authFlags{} && len(args) > 1: // the operation is there, so this is a host
		return wrong(cmd, "the host %s needs --token-file, with the same secret on both sides (ibverbx token makes one), or --ca, --cert and --key", f.host)
	case f.host != "" && f.auth == authFlags{}:
		return wrong(cmd, "there is no operation %q: use write, read, send or atomic. If it is a host, both sides need --token-file, or --ca, --cert and --key", f.host)
	case f.host == "" && !f.server && f.capture.on():
		return wrong(cmd, "--pcap and --pcap-wire need a host or --server: in one process there are no packets")
	case !f.capture.on() && f.capture.snapLen != 0:
		return wrong(cmd, "--snaplen needs --pcap or --pcap-wire")
	case f.host == "" && !f.server && (f.auth != authFlags{} || len(f.addrs)+len(f.networks) > 0 || f.link != "" || f.unsealed):
		return wrong(cmd, "the flags for authentication, --link, --addr, --peer-network and --unsealed need a host or --server")
	case len(f.memory) > 1 && (f.host != "" || f.server):
		return wrong(cmd, "--memory %s: two places are for both ends in one process; give each of two processes its own", strings.Join(f.memory, ","))
	case f.link == peer.LinkShm && (f.capture.on() || len(f.addrs)+len(f.cfg.Impair) > 0):
		return wrong(cmd, "--addr, --impair, --pcap and --pcap-wire are for --link udp")
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
	if f.out.machine() {
		notes = io.Discard
	}
	from, err := f.nics.choose(notes)
	if err != nil {
		return err
	}
	n, err := from.open(cfg.Rails, cfg.Impair)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.close()) }()
	if err := n.set(cfg.Wish(), &f.settings); err != nil {
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
	o := perf.Observer{Progress: func(p perf.Progress) { line.write(progress.text(p, time.Now())) }, Paths: pathsOf, Health: healthOf, Measuring: f.capture.measuring, Interval: f.out.span(&f.cfg)}
	o.Opened = f.metrics.opened(remote)
	if web != nil {
		o.Look = web.look
	}
	run := runOf(s.args)
	complete := func(r *perf.Report) {
		run.Options = r.Run.Options
		r.Run, r.Remote, r.Settings = run, remote, f.given()
	}
	var t *perfTable
	o.Head = func(r perf.Report) {
		line.clear()
		complete(&r)
		web.head(ctx, s, &r)
		if !f.out.machine() {
			t = newPerfTable(s, r, f)
		}
	}
	if !f.out.machine() && f.out.interval > 0 {
		o.Span = func(size int, span perf.Span) { line.clear(); t.span(size, span) }
	}
	if !f.out.machine() {
		o.Result = func(r perf.Result) { line.clear(); t.row(r) }
	}
	report, err := test.Run(ctx, o)
	line.clear()
	complete(&report)
	err = web.end(&report, err)
	ended := ctx.Err() != nil && len(report.Results) > 0 // a server that is stopped has an error, and the rows before it
	report.Interrupted = report.Interrupted || ended && err != nil
	switch {
	case f.out.machine() && (err == nil || ended):
		err = errors.Join(err, f.out.print(s.out, &report))
	case t != nil:
		err = errors.Join(err, t.end(report, err))
	}
	if err == nil || ended {
		err = errors.Join(err, f.out.save(&report))
	}
	if err == nil && report.Interrupted && !f.server {
		err = fmt.Errorf("%w: measured %d of %d sizes, the last perhaps in part", errInterrupted, len(report.Results), len(test.Sizes()))
	}
	return err
}
