package metrics

import (
	"slices"
	"time"

	"ibverbx"
	"ibverbx/bootstrap"
	"ibverbx/files"
	"ibverbx/node"
	"ibverbx/reliable"
	"ibverbx/reliable/core"
	"ibverbx/softnic"
	"ibverbx/stream"
	"ibverbx/transfer"
)

// tables has a table for each type of component.
type tables struct {
	qps       table[qpStats]
	rails     table[ibverbx.RailStats]
	nics      table[softnic.Stats]
	paths     table[pathStats]
	conns     table[bootstrap.ConnStats]
	listeners table[bootstrap.ListenerStats]
	// streams is per peer host, streamNodes per Node.
	streams     table[stream.HostStats]
	streamNodes table[stream.Stats]
	// hosts is per peer host, nodes per Node.
	hosts     table[node.Totals]
	nodes     table[node.Stats]
	transfers table[transfer.Stats]
	files     table[files.Stats]
	labels    table[names]
}

func newTables() tables {
	return tables{
		qps:       table[qpStats]{names: []string{"session"}, metrics: qpMetrics, rows: map[labels]*row{}},
		rails:     table[ibverbx.RailStats]{names: []string{"session", "rail", "device"}, metrics: railMetrics, rows: map[labels]*row{}},
		nics:      table[softnic.Stats]{names: []string{"device"}, kindOf: "reason", metrics: nicMetrics, rows: map[labels]*row{}},
		paths:     table[pathStats]{names: []string{"device"}, kindOf: "cause", metrics: pathMetrics, rows: map[labels]*row{}},
		conns:     table[bootstrap.ConnStats]{names: []string{"session"}, kindOf: "direction", metrics: connMetrics, rows: map[labels]*row{}},
		listeners: table[bootstrap.ListenerStats]{names: []string{"listener"}, metrics: listenerMetrics, rows: map[labels]*row{}},
		streams:   table[stream.HostStats]{names: []string{"session"}, kindOf: "direction", metrics: streamMetrics, rows: map[labels]*row{}},

		streamNodes: table[stream.Stats]{kindOf: "direction", metrics: streamNodeMetrics, rows: map[labels]*row{}},
		hosts:       table[node.Totals]{names: []string{"session"}, kindOf: "state", metrics: hostMetrics, rows: map[labels]*row{}},
		nodes:       table[node.Stats]{metrics: nodeMetrics, rows: map[labels]*row{}},
		transfers:   table[transfer.Stats]{kindOf: "direction", metrics: transferMetrics, rows: map[labels]*row{}},
		files:       table[files.Stats]{kindOf: "direction", metrics: fileMetrics, rows: map[labels]*row{}},
		labels:      table[names]{names: []string{"label"}, metrics: labelMetrics, rows: map[labels]*row{}},
	}
}

func (t *tables) clone() tables {
	return tables{
		t.qps.clone(), t.rails.clone(), t.nics.clone(), t.paths.clone(), t.conns.clone(), t.listeners.clone(),
		t.streams.clone(), t.streamNodes.clone(), t.hosts.clone(), t.nodes.clone(), t.transfers.clone(), t.files.clone(), t.labels.clone(),
	}
}

func (t *tables) list() []anyTable {
	return []anyTable{&t.qps, &t.rails, &t.nics, &t.paths, &t.conns, &t.listeners, &t.streams, &t.streamNodes, &t.hosts, &t.nodes, &t.transfers, &t.files, &t.labels}
}

// qpStats holds the reported values of VirtualQPs. Stats sums over open and closed ones.
type qpStats struct {
	*ibverbx.Stats
	open, failed, lanes int
}

var qpMetrics = []metric[qpStats]{
	{"sessions", "Open VirtualQPs.", gauge, "", func(s *qpStats) float64 { return float64(s.open) }},
	{"sessions_failed", "Open VirtualQPs that have failed.", gauge, "", func(s *qpStats) float64 { return float64(s.failed) }},
	{"session_lanes", "Lanes.", gauge, "", func(s *qpStats) float64 { return float64(s.lanes) }},
	{"session_lanes_out", "Lanes out of service.", gauge, "", func(s *qpStats) float64 { return float64(s.Out) }},
	{"session_lane_deaths_total", "Lane failures.", counter, "", func(s *qpStats) float64 { return float64(s.Deaths) }},
	{"session_replayed_requests_total", "Physical requests replayed after a lane was lost.", counter, "", func(s *qpStats) float64 { return float64(s.Replayed) }},
	{"session_sends_posted_total", "Posted send requests.", counter, "", func(s *qpStats) float64 { return float64(s.Posted) }},
	{"session_sends_completed_total", "Completed send requests, including failed ones.", counter, "", func(s *qpStats) float64 { return float64(s.Completed) }},
	{"session_receives_posted_total", "Posted receives.", counter, "", func(s *qpStats) float64 { return float64(s.RecvPosted) }},
	{"session_receives_completed_total", "Completed receives, including failed ones.", counter, "", func(s *qpStats) float64 { return float64(s.RecvCompleted) }},
	{"session_control_errors_total", "Control messages that failed to be sent or decoded.", counter, "", func(s *qpStats) float64 { return float64(s.ControlErrors) }},
}

var railMetrics = []metric[ibverbx.RailStats]{
	{"rail_lanes_up", "Data lanes in service on the rail.", gauge, "", func(s *ibverbx.RailStats) float64 { return float64(s.Up) }},
	{"rail_sessions_down", "VirtualQPs whose lanes on the rail are all out of service.", gauge, "", func(s *ibverbx.RailStats) float64 { return float64(s.Down) }},
	{"rail_losses_total", "Losses of the rail: its last data lane in service was lost.", counter, "", func(s *ibverbx.RailStats) float64 { return float64(s.Lost) }},
	{"rail_recoveries_total", "Recoveries of the rail after a loss.", counter, "", func(s *ibverbx.RailStats) float64 { return float64(s.Recovered) }},
	{"rail_failover_seconds_total", "Time for which losses of the rail delayed requests, of each loss the longest delay.", counter, "", func(s *ibverbx.RailStats) float64 { return s.FailoverTime.Seconds() }},
	{"rail_bytes_total", "Bytes written or read by the local end.", counter, "", func(s *ibverbx.RailStats) float64 { return float64(s.Bytes) }},
	{"rail_fragments_total", "Physical requests accepted by the NIC.", counter, "", func(s *ibverbx.RailStats) float64 { return float64(s.Fragments) }},
	{"rail_doorbells_total", "Doorbells: posts accepted by the NIC, completely or in part.", counter, "", func(s *ibverbx.RailStats) float64 { return float64(s.Doorbells) }},
	{"rail_completions_total", "Physical completions.", counter, "", func(s *ibverbx.RailStats) float64 { return float64(s.CQEs) }},
	{"rail_refusals_total", "Posts rejected by the NIC, completely or in part.", counter, "", func(s *ibverbx.RailStats) float64 { return float64(s.Refusals) }},
	{"rail_stale_completions_total", "Completions of an earlier lane generation.", counter, "", func(s *ibverbx.RailStats) float64 { return float64(s.Stale) }},
}

const dropHelp = "Packets dropped by the software NIC. Reason no_buffer counts UC and UD messages without a receive, not packets."

var nicMetrics = []metric[softnic.Stats]{
	{"nic_sent_packets_total", "Packets sent by the software NIC.", counter, "", func(s *softnic.Stats) float64 { return float64(s.PacketsSent) }},
	{"nic_received_packets_total", "Packets received by the software NIC.", counter, "", func(s *softnic.Stats) float64 { return float64(s.PacketsReceived) }},
	{"nic_direct_transfers_total", "WRITEs and READs through shared memory, without packets.", counter, "", func(s *softnic.Stats) float64 { return float64(s.Direct) }},
	{"nic_go_backs_total", "Go-backs of requesters, about one per lost packet.", counter, "", func(s *softnic.Stats) float64 { return float64(s.GoBacks) }},
	{"nic_retransmits_total", "Packets sent again, probes included.", counter, "", func(s *softnic.Stats) float64 { return float64(s.Retransmits) }},
	{"nic_timeouts_total", "Expired ACK timers; probes do not count.", counter, "", func(s *softnic.Stats) float64 { return float64(s.Timeouts) }},
	{"nic_naks_total", "Sequence and fatal NAKs sent.", counter, "", func(s *softnic.Stats) float64 { return float64(s.NAKsSent) }},
	{"nic_rnr_naks_total", "RNR NAKs sent because no receive was posted.", counter, "", func(s *softnic.Stats) float64 { return float64(s.RNRNAKsSent) }},
	{"nic_duplicates_total", "Request packets received again.", counter, "", func(s *softnic.Stats) float64 { return float64(s.Duplicates) }},
	{"nic_out_of_order_total", "Request packets received after a gap.", counter, "", func(s *softnic.Stats) float64 { return float64(s.OutOfOrder) }},
	{"nic_congestion_notices_total", "Congestion notification packets (CNPs) received.", counter, "", func(s *softnic.Stats) float64 { return float64(s.CongestionNotices) }},
	{"nic_wrong_keys_total", "Peer requests rejected for an invalid key, range or access right.", counter, "", func(s *softnic.Stats) float64 { return float64(s.WrongKeys) }},
	{"nic_receive_errors_total", "Errors of the receiving socket.", counter, "", func(s *softnic.Stats) float64 { return float64(s.ReceiveErrors) }},
	{"nic_drops_total", dropHelp, counter, "bad_icrc", func(s *softnic.Stats) float64 { return float64(s.BadICRC) }},
	{"nic_drops_total", dropHelp, counter, "malformed", func(s *softnic.Stats) float64 { return float64(s.Malformed) }},
	{"nic_drops_total", dropHelp, counter, "no_buffer", func(s *softnic.Stats) float64 { return float64(s.MessagesDropped) }},
	{"nic_drops_total", dropHelp, counter, "blocked_write", func(s *softnic.Stats) float64 { return float64(s.WritesBlocked) }},
	{"nic_drops_total", dropHelp, counter, "unknown_qp", func(s *softnic.Stats) float64 { return float64(s.UnknownQP) }},
	{"nic_drops_total", dropHelp, counter, "not_ready", func(s *softnic.Stats) float64 { return float64(s.NotReady) }},
	{"nic_drops_total", dropHelp, counter, "wrong_source", func(s *softnic.Stats) float64 { return float64(s.WrongSource) }},
	{"nic_drops_total", dropHelp, counter, "bad_key", func(s *softnic.Stats) float64 { return float64(s.BadQKey + s.BadPKey) }},
	{"nic_drops_total", dropHelp, counter, "send", func(s *softnic.Stats) float64 { return float64(s.SendDrops) }},
	{"nic_drops_total", dropHelp, counter, "unroutable", func(s *softnic.Stats) float64 { return float64(s.Unroutable) }},
	{"nic_drops_total", dropHelp, counter, "port_down", func(s *softnic.Stats) float64 { return float64(s.PortDownDrops) }},
	{"nic_drops_total", dropHelp, counter, "seal", func(s *softnic.Stats) float64 {
		d := &s.Seals
		return float64(d.Bad + d.Replayed + d.Old + d.Unknown + d.Wrong + d.Plain)
	}},
}

// pathStats holds the reported values of the paths in a reliable context.
type pathStats struct {
	core.Stats
	up, down        int
	typical, slowed time.Duration // the median and the highest of the smoothed round trip times
}

func readPaths(from reliable.StatsReader) *pathStats {
	s := &pathStats{Stats: from.Stats()}
	var times []int64
	for _, p := range from.Paths() {
		if p.State == core.PathUp {
			s.up++
		} else {
			s.down++
		}
		if p.RTT > 0 {
			times = append(times, p.RTT)
		}
	}
	if slices.Sort(times); len(times) > 0 {
		s.typical, s.slowed = time.Duration(times[len(times)/2]), time.Duration(times[len(times)-1])
	}
	return s
}

const lossHelp = "Lost chunk transmissions, by detection method."

var pathMetrics = []metric[pathStats]{
	{"paths_up", "Paths in service.", gauge, "", func(s *pathStats) float64 { return float64(s.up) }},
	{"paths_down", "Paths out of service.", gauge, "", func(s *pathStats) float64 { return float64(s.down) }},
	{"path_rtt_median_seconds", "Median of the paths' smoothed round-trip times.", highest, "", func(s *pathStats) float64 { return s.typical.Seconds() }},
	{"path_rtt_max_seconds", "Maximum of the paths' smoothed round-trip times.", highest, "", func(s *pathStats) float64 { return s.slowed.Seconds() }},
	{"path_chunks_total", "Chunks sent for the first time.", counter, "", func(s *pathStats) float64 { return float64(s.Chunks) }},
	{"path_retransmitted_chunks_total", "Chunk transmissions after the first.", counter, "", func(s *pathStats) float64 { return float64(s.Retransmitted) }},
	{"path_lost_chunks_total", lossHelp, counter, "same_path", func(s *pathStats) float64 { return float64(s.SamePathLoss) }},
	{"path_lost_chunks_total", lossHelp, counter, "reorder", func(s *pathStats) float64 { return float64(s.ReorderLoss) }},
	{"path_lost_chunks_total", lossHelp, counter, "timeout", func(s *pathStats) float64 { return float64(s.TimeoutLoss) }},
	{"path_duplicate_chunks_total", "Duplicate chunks received.", counter, "", func(s *pathStats) float64 { return float64(s.Duplicates) }},
	{"path_refused_chunks_total", "Received chunks dropped for lack of space, a receive or an open flow.", counter, "", func(s *pathStats) float64 { return float64(s.Refused) }},
	{"path_bad_records_total", "Invalid records received.", counter, "", func(s *pathStats) float64 { return float64(s.BadRecords) }},
	{"path_deaths_total", "Path failures.", counter, "", func(s *pathStats) float64 { return float64(s.PathsDown) }},
}

const (
	messageHelp  = "Messages on the connection to the peer."
	datagramHelp = "Control messages on the connection to the peer."
)

var connMetrics = []metric[bootstrap.ConnStats]{
	{"peer_connections", "Open connections to peers.", gauge, "", func(*bootstrap.ConnStats) float64 { return 1 }},
	{"peer_messages_total", messageHelp, counter, "in", func(s *bootstrap.ConnStats) float64 { return float64(s.MessagesIn) }},
	{"peer_messages_total", messageHelp, counter, "out", func(s *bootstrap.ConnStats) float64 { return float64(s.MessagesOut) }},
	{"peer_datagrams_total", datagramHelp, counter, "in", func(s *bootstrap.ConnStats) float64 { return float64(s.DatagramsIn) }},
	{"peer_datagrams_total", datagramHelp, counter, "out", func(s *bootstrap.ConnStats) float64 { return float64(s.DatagramsOut) }},
	{"peer_datagrams_lost_total", "Control messages dropped locally.", counter, "", func(s *bootstrap.ConnStats) float64 { return float64(s.DatagramsLost) }},
	{"peer_keepalives_total", "Keepalives received.", counter, "", func(s *bootstrap.ConnStats) float64 { return float64(s.KeepalivesIn) }},
}

var listenerMetrics = []metric[bootstrap.ListenerStats]{
	{"listener_admitted_total", "Authenticated peers admitted.", counter, "", func(s *bootstrap.ListenerStats) float64 { return float64(s.Admitted) }},
	{"listener_rejected_total", "Connections rejected, for example for failed authentication.", counter, "", func(s *bootstrap.ListenerStats) float64 { return float64(s.Rejected) }},
	{"listener_half_open", "Connections in the handshake.", gauge, "", func(s *bootstrap.ListenerStats) float64 { return float64(s.HalfOpen) }},
}

const (
	streamBytesHelp = "Stream bytes received from peers (in) and delivered to peers (out)."
	openedHelp      = "Streams opened by peers (in) and locally (out)."
)

var streamMetrics = []metric[stream.HostStats]{
	{"streams", "Open streams.", gauge, "", func(s *stream.HostStats) float64 { return float64(s.Streams) }},
	{"stream_bytes_total", streamBytesHelp, counter, "in", func(s *stream.HostStats) float64 { return float64(s.Received) }},
	{"stream_bytes_total", streamBytesHelp, counter, "out", func(s *stream.HostStats) float64 { return float64(s.Sent) }},
	{"stream_resets_total", "Streams lost with their session or reset by the peer.", counter, "", func(s *stream.HostStats) float64 { return float64(s.Resets) }},
}

var streamNodeMetrics = []metric[stream.Stats]{
	{"streams_opened_total", openedHelp, counter, "in", func(s *stream.Stats) float64 { return float64(s.Accepted) }},
	{"streams_opened_total", openedHelp, counter, "out", func(s *stream.Stats) float64 { return float64(s.Dialed) }},
	{"streams_refused_total", "Peer streams refused.", counter, "", func(s *stream.Stats) float64 { return float64(s.Refused) }},
	{"stream_memory_bytes", "Ring memory of all streams.", gauge, "", func(s *stream.Stats) float64 { return float64(s.Memory) }},
}
