package metrics

import (
	"ibverbx/files"
	"ibverbx/node"
	"ibverbx/transfer"
)

const peersHelp = "Peers, by the state of their connection."

// hostMetrics are the metrics of the peers on one host.
var hostMetrics = []metric[node.Totals]{
	{"peers", peersHelp, gauge, "ready", func(s *node.Totals) float64 { return float64(s.Ready) }},
	{"peers", peersHelp, gauge, "parked", func(s *node.Totals) float64 { return float64(s.Parked) }},
	{"peers", peersHelp, gauge, "lost", func(s *node.Totals) float64 { return float64(s.Lost) }},
	{"peers", peersHelp, gauge, "connecting", func(s *node.Totals) float64 { return float64(s.Connecting) }},
	{"peer_sessions_total", "Established sessions.", counter, "", func(s *node.Totals) float64 { return float64(s.Sessions) }},
	{"peer_reconnects_total", "Sessions that replaced a lost one.", counter, "", func(s *node.Totals) float64 { return float64(s.Reconnects) }},
	{"peer_losses_total", "Lost sessions.", counter, "", func(s *node.Totals) float64 { return float64(s.Losses) }},
	{"peer_closed_total", "Sessions that one side closed in order.", counter, "", func(s *node.Totals) float64 { return float64(s.Closed) }},
	{"peer_operations_total", "Completed operations, including failed ones.", counter, "", func(s *node.Totals) float64 { return float64(s.Counters.Operations) }},
	{"peer_failed_operations_total", "Operations that failed.", counter, "", func(s *node.Totals) float64 { return float64(s.Counters.Failed) }},
	{"peer_replayed_operations_total", "Operations that resumed in a later session.", counter, "", func(s *node.Totals) float64 { return float64(s.Counters.Replays) }},
	{"peer_written_bytes_total", "Bytes written to peers.", counter, "", func(s *node.Totals) float64 { return float64(s.Counters.BytesWritten) }},
	{"peer_read_bytes_total", "Bytes read from peers.", counter, "", func(s *node.Totals) float64 { return float64(s.Counters.BytesRead) }},
}

// nodeMetrics are the metrics of a whole Node.
var nodeMetrics = []metric[node.Stats]{
	{"peers_refused_total", "Connections from authenticated peers that failed before a session was established.", counter, "", func(s *node.Stats) float64 { return float64(s.Refused) }},
	{"shards", "Completion queues that the sessions share.", gauge, "", func(s *node.Stats) float64 { return float64(s.Shards) }},
}

const notificationsHelp = "Notifications received from peers (in) and sent (out)."

var transferMetrics = []metric[transfer.Stats]{
	{"transfer_batches_total", "Completed batches, including failed ones.", counter, "", func(s *transfer.Stats) float64 { return float64(s.Transfers) }},
	{"transfer_failed_batches_total", "Batches that failed.", counter, "", func(s *transfer.Stats) float64 { return float64(s.Failed) }},
	{"transfer_bytes_total", "Bytes moved by successful batches.", counter, "", func(s *transfer.Stats) float64 { return float64(s.Bytes) }},
	{"transfer_notifications_total", notificationsHelp, counter, "in", func(s *transfer.Stats) float64 { return float64(s.Notifications) }},
	{"transfer_notifications_total", notificationsHelp, counter, "out", func(s *transfer.Stats) float64 { return float64(s.Notified) }},
	{"transfer_retries_total", "Batches moved once more because digests differed.", counter, "", func(s *transfer.Stats) float64 { return float64(s.Retries) }},
	{"transfer_digest_errors_total", "Batches that failed because digests differed.", counter, "", func(s *transfer.Stats) float64 { return float64(s.DigestErrors) }},
}

const (
	filesHelp     = "Files received completely (in) and read completely by peers (out)."
	fileBytesHelp = "Bytes of files received (in) and sent (out), without existing data."
)

var fileMetrics = []metric[files.Stats]{
	{"files_total", filesHelp, counter, "in", func(s *files.Stats) float64 { return float64(s.FilesReceived) }},
	{"files_total", filesHelp, counter, "out", func(s *files.Stats) float64 { return float64(s.FilesSent) }},
	{"file_bytes_total", fileBytesHelp, counter, "in", func(s *files.Stats) float64 { return float64(s.BytesReceived) }},
	{"file_bytes_total", fileBytesHelp, counter, "out", func(s *files.Stats) float64 { return float64(s.BytesSent) }},
	{"file_reused_bytes_total", "Bytes of files that existed at the receiver.", counter, "", func(s *files.Stats) float64 { return float64(s.BytesReused) }},
	{"files_resumed_total", "Received files for which existing data was reused.", counter, "", func(s *files.Stats) float64 { return float64(s.FilesResumed) }},
	{"files_failed_total", "Files that could not be received.", counter, "", func(s *files.Stats) float64 { return float64(s.FilesFailed) }},
	{"file_digest_errors_total", "Received chunks with a wrong digest.", counter, "", func(s *files.Stats) float64 { return float64(s.DigestErrors) }},
}

// labelMetrics are the metrics of the values of a label.
var labelMetrics = []metric[names]{
	{"label_overflow", "1 if further values of the label are reported as other.", gauge, "", func(n *names) float64 {
		if (*n)[otherName] {
			return 1
		}
		return 0
	}},
}
