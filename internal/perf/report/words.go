package report

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"ibverbx/internal/perf/measure"
	"ibverbx/peer"
	"ibverbx/settings"
)

const (
	// GPUCopy is the name of a copy by a GPU.
	GPUCopy = "GPU copy"

	mebibyte = 1 << 20
)

// Title returns perftest's name for the test.
func Title(r measure.Report) string {
	words := map[measure.Op]string{
		measure.Write: "RDMA_Write", measure.WriteImm: "RDMA_Write_With_Imm", measure.Read: "RDMA_Read", measure.Send: "Send", measure.Atomic: "Atomic FETCH_AND_ADD",
	}[r.Op]
	if r.Bidirectional {
		words += " Bidirectional"
	}
	if r.Mode == measure.Latency {
		return words + " Latency Test"
	}
	return words + " BW Test"
}

// Plural formats a count of things.
func Plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// PacketsText describes the protection of packets between processes.
func PacketsText(r *measure.Report) string {
	switch {
	case r.Sealed:
		return "sealed: encrypted and authenticated"
	case r.Link == string(peer.LinkShm):
		return "none, memory of one user on one host"
	}
	return "plain: neither encrypted nor authenticated"
}

// MemoryText names the memory of both sides' buffers.
func MemoryText(r *measure.Report) string {
	from, to := r.Run.Options.Memory[0].String(), r.Run.Options.Memory[1].String()
	if from == to {
		return from
	}
	return from + " -> " + to
}

// CopyName names the reference copy: by the CPU, or by the GPU that owns one of the buffers.
func CopyName(r *measure.Report) string {
	if MemoryText(r) == measure.HostMemory {
		return "memcpy"
	}
	return GPUCopy
}

// EndsText names the two ends of a rail, by address if known, because NICs of two processes may
// have the same name.
func EndsText(rail *measure.Rail, processes bool) string {
	if processes && rail.Addr == "" {
		return rail.Device + " of the client -> " + rail.Peer + " of the server"
	}
	return cmp.Or(rail.Addr, rail.Device) + " -> " + cmp.Or(rail.PeerAddr, rail.Peer)
}

// HealthText lists the nonzero counters.
func HealthText(h *measure.Health) string {
	if h == nil {
		return ""
	}
	var parts []string
	for _, c := range []struct {
		n    uint64
		name string
	}{
		{h.Lost, "lost"},
		{h.Retransmits, "retransmits"},
		{h.Timeouts, "timeouts"},
		{h.NAKs, "NAKs"},
		{h.RNRs, "RNRs"},
		{h.BadICRC, "bad ICRC"},
		{h.Drops, "drops"},
	} {
		if c.n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", c.n, c.name))
		}
	}
	if h.RTTp50 > 0 {
		parts = append(parts, fmt.Sprintf("RTT p50 %.1f p99 %.1f usec", h.RTTp50, h.RTTp99))
	}
	return strings.Join(parts, ", ")
}

// Event is an event on one lane, or the same event on several.
type Event struct {
	measure.FailoverEvent
	lanes []int
}

// Events merges equal events on several lanes within a millisecond. Their rail's event may be in
// between.
func Events(events []measure.FailoverEvent) (out []Event) {
	for i := range events {
		e := &events[i]
		if e.Lane == nil {
			out = append(out, Event{FailoverEvent: *e})
			continue
		}
		same := slices.IndexFunc(out, func(o Event) bool {
			return o.lanes != nil && o.End == e.End && o.Event == e.Event && o.Rail == e.Rail && o.Cause == e.Cause && e.At-o.At < 0.001
		})
		if same < 0 {
			out = append(out, Event{FailoverEvent: *e, lanes: []int{*e.Lane}})
			continue
		}
		out[same].lanes = append(out[same].lanes, *e.Lane)
	}
	return out
}

// EventText describes an event, its lanes or rail, and its cause.
func EventText(r *measure.Report, e *Event) string {
	text := ""
	switch {
	case e.lanes != nil:
		text = fmt.Sprintf("%s %s (rail %d)", laneList(e.lanes), strings.TrimPrefix(e.Event, "lane "), e.Rail)
	case strings.HasPrefix(e.Event, "port ") && e.End != "both":
		text = fmt.Sprintf("port of rail %d %s: %s", e.Rail, strings.TrimPrefix(e.Event, "port "), r.PerRail[e.Rail].Device)
	case e.End == "both":
		rail := &r.PerRail[e.Rail]
		text = fmt.Sprintf("ports of rail %d %s: %s and %s", e.Rail, strings.TrimPrefix(e.Event, "port "), rail.Device, rail.Peer)
	case strings.HasPrefix(e.Event, "rail "):
		return fmt.Sprintf("rail %d %s", e.Rail, strings.TrimPrefix(e.Event, "rail "))
	case e.Event == "recovered":
		text = "recovered: all lanes are in service"
	default:
		text = e.Event
	}
	if e.Cause != "" {
		text += ": " + e.Cause
	}
	return text
}

// laneList lists lanes, or only the first and the last of many.
func laneList(lanes []int) string {
	const shown = 8
	names := make([]string, len(lanes))
	for i, l := range lanes {
		names[i] = strconv.Itoa(l)
	}
	switch n := len(names); {
	case n == 1:
		return "lane " + names[0]
	case n > shown:
		return fmt.Sprintf("%d lanes, %s to %s,", n, names[0], names[n-1])
	}
	return "lanes " + strings.Join(names, ", ")
}

// SettingsText formats the settings on one line.
func SettingsText(list []settings.Origin) string {
	var parts []string
	for _, s := range list {
		parts = append(parts, fmt.Sprintf("%s %s (%s)", s.Name, s.Value, s.From))
	}
	return strings.Join(parts, ", ")
}
