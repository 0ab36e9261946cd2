package main

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
)

// document is docs/conformance.md.
type document struct {
	columns     []column
	rows        []row
	count       [][len(words)]int // verdicts by column
	linux       string
	rdmaCore    string
	substitutes []string
	interop     []string // the table of test/rxe/interop, line by line
	// departures and lacks are reasons with what they are the reason of, in order.
	departures, lacks, swaps []group
}

// row is a line of the table, or a family's heading.
type row struct {
	family string
	item   item
	cells  []verdict
}

// group is a reason and the names that it holds for, each in some of the columns.
type group struct {
	reason string
	names  []string
	where  []uint // a bit per column, for each name
}

// Columns by their bits.
const (
	bothRXE = 1<<1 | 1<<2
	all     = 1<<0 | bothRXE
)

// newDocument judges every item. A log without a version or with a failure makes none.
func newDocument(families []family, softnic, rxe *testLog) (*document, error) {
	d := &document{columns: []column{
		{title: "softnic", runs: []string{"TestConformance", "TestConformanceSegmented"}, log: softnic},
		{title: "rxe, one device", runs: []string{"TestConformanceRXE", "TestConformanceRXEPlain"}, log: rxe},
		{title: "rxe, two devices", runs: []string{"TestConformanceRXEPair"}, log: rxe},
	}}
	d.count = make([][len(words)]int, len(d.columns))
	var err error
	if d.linux, err = only(rxe, "version of Linux: "); err != nil {
		return nil, err
	}
	if d.rdmaCore, err = only(rxe, "version of rdma-core: "); err != nil {
		return nil, err
	}
	if d.interop = rxe.find("interop table: "); len(d.interop) == 0 {
		return nil, errors.New("the log has no interop table: run all tests of test/rxe/interop")
	}
	for _, line := range d.interop {
		if !strings.HasPrefix(line, "|--") && strings.Contains(line, "| no") {
			return nil, fmt.Errorf("the interop table has %q: want no operation that failed or did not run", line)
		}
	}
	for _, s := range rxe.find("substitute ") {
		if !slices.Contains(d.substitutes, s) {
			d.substitutes = append(d.substitutes, s)
		}
	}
	for _, f := range families {
		d.rows = append(d.rows, row{family: f.name})
		for _, it := range f.items {
			if err := d.add(it); err != nil {
				return nil, err
			}
		}
	}
	return d, nil
}

// only returns what a log says behind a prefix, once.
func only(l *testLog, prefix string) (string, error) {
	found := slices.Compact(l.find(prefix))
	if len(found) != 1 {
		return "", fmt.Errorf("the log says %q %d times, want once: run all tests of the package", prefix, len(found))
	}
	return found[0], nil
}

func (d *document) add(it item) error {
	r := row{item: it}
	for i := range d.columns {
		c := &d.columns[i]
		o, err := c.judge(it.name)
		if err != nil {
			return fmt.Errorf("%s: %w", c.title, err)
		}
		r.cells = append(r.cells, o.verdict)
		d.count[i][o.verdict]++
		d.departures = file(d.departures, i, o.departures)
		d.lacks = file(d.lacks, i, o.lacks)
		d.swaps = file(d.swaps, i, o.swaps)
	}
	d.rows = append(d.rows, r)
	return nil
}

// file puts notes of a column under their reasons.
func file(groups []group, column int, notes []note) []group {
	for _, n := range notes {
		i := slices.IndexFunc(groups, func(g group) bool { return g.reason == n.reason })
		if i < 0 {
			i = len(groups)
			groups = append(groups, group{reason: n.reason})
		}
		g := &groups[i]
		k := slices.Index(g.names, n.name)
		if k < 0 {
			k = len(g.names)
			g.names, g.where = append(g.names, n.name), append(g.where, 0)
		}
		g.where[k] |= 1 << column
	}
	return groups
}

const head = `# Conformance

<!-- Written by test/rxe/conformance: change that, or the suite, and write it again. -->

Every item of the conformance suite ([verbs/verbstest](../verbs/verbstest)) with what the
providers make of it: [softnic](../softnic), over a link that carries whole messages and over one
that cuts them into packets, and [rdmacore](../rdmacore) on the kernel's Soft-RoCE (rxe), within
one device, with plain and with extended CQs, and between two. The InfiniBand specification (IBTA)
and the manual pages of libibverbs decide what is right; where rxe departs from them the reason
is [below](#where-rxe-departs).

- **yes**: does what the item promises.
- **yes, status**: so too, but for the status of a failed completion
  ([which](#statuses-that-rxe-confuses)).
- **in part**: some cases of the item are skipped, for a reason below.
- **not there**: the device does not have what the item is about, and says so.
- **departs**: does something else. The item is skipped.

Ran on Linux %s with rdma-core %s. rxe in other kernels may differ.

`

const beyond = `
## What no item says

rxe frees the place of a request in its send queue when it completes the request; other drivers,
and softnic, when the completion is polled. Both are right. But a full send queue does not hold
back a program on rxe that polls late, and a CQ that is as deep as the send queues can overrun:
it must have room for every completion that may be unpolled (` + "`verbs.CQConfig.Depth`" + `).

## The engine's transcripts

The stories in [test/engine/transcript](../test/engine/transcript/testdata/transcripts) are written for NICs that do as they
are told. ` + "`TestTranscriptsRXE`" + ` plays every one of them on rxe, over rdmacore, each rail a pair of
devices, and the answers must be those in the files: completions, their order, statuses,
immediates, lengths. A lane keeps what the engine posts until the story says how it ends; then
that happens for real:

- ` + "`complete`" + `: the requests go to a peer on the other device, in one chain. The bytes are compared
  there, and so are immediate and length of what the peer receives.
- ` + "`fail`" + ` with an access error: the key is one that the peer does not have. With retries
  exceeded: the peer's QP is gone. What is behind is flushed by the device.
- ` + "`fail recv`" + `: the peer sends more than the receive takes. rxe confuses the status (above).
- ` + "`deliver`" + `: the peer sends it. ` + "`receiver not ready`" + `: it is sent again by the device until a
  receive is there.

Made by the test and not by the device are refusals of a chain at a given place (` + "`refuse`" + `, in
` + "`direct-lane`" + ` and ` + "`refusal-*`" + `), because no device can be told to, and the flush of receives that are
posted in ERR, which rxe has not (CapFlushOnPost).

` + "```" + `
test/rxe/all . -- -test.run TestTranscriptsRXE
` + "```" + `
`

const interopHead = `
## softnic and rxe on one wire

softnic over UDP ([test/rxe/interop](../test/rxe/interop)) against rxe: RoCEv2 on a veth pair, with softnic in a network
namespace of its own at one end, and as the requester ("softnic to rxe") and as the responder ("rxe to softnic").
Every request is tried in lengths at which packets end, begin, are padded and are empty, and the whole memory of
both sides is compared with what it should be. "Loss" and the like are netem's, in both directions. A VirtualQP has
two rails of such wires and four lanes, and where lanes are lost or a rail is cut a control channel.

`

const merged = `
## Items that were merged

Some promises were in the suite twice. The families srqrules, ucrules, udrules, eventrules and closeorder are now part
of srq, uc, ud, events and close, and each of these items is part of a stronger one:

| item | is part of |
|---|---|
| srqrules/OrderPerQP | srq/SharedByQPs |
| srqrules/WriteWithImmLeavesBuffer | srq/WriteWithImm |
| srqrules/LongMessageWaits | srq/EmptyWaits |
| srq/ChainStopsAtBad | srq/TooManyElements |
| srq/LimitTooHigh, srqrules/LimitRefusedChangesNothing | srq/LimitRefused |
| srq/BadConfig | srq/BadConfigs, srq/BadQPConfigs |
| srq/OnUC | uc/SharedReceiveQueue |
| close/SRQ | srq/CloseBusy |
| ucrules/ChainStopsAtRefused | uc/ReadAndAtomicsRefused |
| uc/BadKeyDrops | uc/BadRemoteDrops |
| uc/LocalErrorIsSQE | uc/LocalErrors, uc/SQETransitions |
| udrules/ChainStopsAtRefused | ud/OtherOpcodesRefused |
| udrules/ClosedAH | ud/BadAH |
| ud/LocalErrorIsSQE | ud/LocalErrors |
| eventrules/SmallDst | events/InOrder |
| device/ForeignObjects | cq/BadCQs |
| limits/CQOverrun | cq/OverrunByReceives, cq/OverrunBySends |
| connect/SameNumberOnTwoDevices | many/SameNumbers |
| memory/KeyNotReusedAtOnce | keys/NotReusedAtOnce |
| close/PeerFirst | retry/PeerClosed |
| wait/ArmThenCompletion | wait/OneWakePerArm |
`

const again = `
## How to run it

` + "```" + `
go test -count=1 -v -run 'TestConformance(Segmented)?$' ./softnic >softnic.log
test/rxe/all ./rdmacore ./test/rxe/interop >rxe.log    # in a virtual machine, some minutes
go run ./test/rxe/conformance softnic.log rxe.log >docs/conformance.md
` + "```" + `

[test/rxe](../test/rxe/README.md) says what the machine needs. One item, on softnic and on rxe:

` + "```" + `
go test ./softnic -run 'TestConformance/events/InOrder' -v
test/rxe/all ./rdmacore -- -test.run 'TestConformanceRXE.*/events/InOrder'
` + "```" + `

Your own provider runs the suite with one call of ` + "`verbstest.Run`" + `
([testing](testing.md#the-conformance-suite)).
`

func (d *document) write(w io.Writer) {
	fmt.Fprintf(w, head, d.linux, library(d.rdmaCore))
	d.writeCounts(w)
	fmt.Fprint(w, "\n## The items\n")
	for _, r := range d.rows {
		if r.family != "" {
			fmt.Fprintf(w, "\n### %s\n\n| item | promise |", r.family)
			for _, c := range d.columns {
				fmt.Fprintf(w, " %s |", c.title)
			}
			fmt.Fprintf(w, "\n|---|---%s|\n", strings.Repeat("|---", len(d.columns)))
			continue
		}
		fmt.Fprintf(w, "| `%s` | %s |", r.item.name, strings.ReplaceAll(r.item.promise, "|", `\|`))
		for _, v := range r.cells {
			fmt.Fprintf(w, " %s |", v)
		}
		fmt.Fprintln(w)
	}
	fmt.Fprint(w, "\n## Where rxe departs\n\nIt\n\n")
	d.writeGroups(w, d.departures, bothRXE)
	fmt.Fprint(w, "\n## Statuses that rxe confuses\n\nThe suite takes the first status for the second and checks the rest of the item.\n\n")
	for _, s := range d.substitutes {
		fmt.Fprintf(w, "- %s.\n", s)
	}
	fmt.Fprint(w, "\nSeen in:\n\n")
	d.writeGroups(w, d.swaps, bothRXE)
	fmt.Fprint(w, "\n## What is not there\n\n")
	d.writeGroups(w, d.lacks, all)
	fmt.Fprint(w, merged)
	fmt.Fprint(w, beyond)
	fmt.Fprint(w, interopHead)
	for _, line := range d.interop {
		fmt.Fprintln(w, line)
	}
	fmt.Fprint(w, again)
}

func (d *document) writeCounts(w io.Writer) {
	fmt.Fprint(w, "| |")
	for _, word := range words {
		fmt.Fprintf(w, " %s |", word)
	}
	fmt.Fprintf(w, "\n|---|%s\n", strings.Repeat("--:|", len(words)))
	for i, c := range d.columns {
		fmt.Fprintf(w, "| %s |", c.title)
		for _, n := range d.count[i] {
			fmt.Fprintf(w, " %d |", n)
		}
		fmt.Fprintln(w)
	}
}

// writeGroups writes a line per reason. What holds elsewhere than in the usual columns
// says where.
func (d *document) writeGroups(w io.Writer, groups []group, usual uint) {
	for _, g := range groups {
		fmt.Fprintf(w, "- %s: ", g.reason)
		for k, name := range g.names {
			if k > 0 {
				fmt.Fprint(w, ", ")
			}
			fmt.Fprintf(w, "`%s`", name)
			if g.where[k] != usual {
				fmt.Fprintf(w, " (%s)", d.place(g.where[k]))
			}
		}
		fmt.Fprintln(w)
	}
}

// place names columns.
func (d *document) place(where uint) string {
	if where == bothRXE {
		return "rxe"
	}
	var titles []string
	for i, c := range d.columns {
		if where>>i&1 != 0 {
			titles = append(titles, c.title)
		}
	}
	return strings.Join(titles, "; ")
}

// library turns the name of libibverbs' file, which ends in its package's version, into
// that version.
func library(file string) string {
	if m := regexp.MustCompile(`^libibverbs\.so\.1\.\d+\.([0-9.]+)$`).FindStringSubmatch(file); m != nil {
		return m[1]
	}
	return "(" + file + ")"
}
