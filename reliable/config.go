package reliable

import (
	"cmp"

	"ibverbx/reliable/core"
	"ibverbx/verbs"
)

// Config describes a wrapped context. The zero value is a good default.
type Config struct {
	// Paths is the number of UC QPs of a connection, at most 256. Zero means 16. Both ends need
	// the same value.
	Paths int
	// Flows is the number of QPs of a PD that may share one connection, at most 4096. Zero means 1.
	// Both ends need the same value. QPs share a connection if they have a send CQ in common, and so have
	// their peers, which are in one PD. With more than 1 a QP gets its connection from the two ends
	// together, with the first request of either: an end without room for another connection (see
	// RecvDepth) fails the QP and raises EventQPFatal.
	Flows int
	// ChunkBytes is the payload limit of one message on a path, at least 256. If the ends differ, the smaller
	// value counts. Zero means 32 KiB, or 64 KiB on a device whose port 1 has verbs.PortAttr.OnCaller.
	ChunkBytes int
	// Window is the number of chunks of a QP that may be unacknowledged: a power of two, at most
	// 256. Zero means 256. Both ends need the same value.
	Window int
	// WindowBytes is the number of bytes of a connection that may be in flight. Zero means 4 MiB.
	WindowBytes int
	// TargetDelay makes the bytes in flight of each path follow its round trip time (Swift), in
	// nanoseconds. They grow while the round trip is within TargetDelay and shrink beyond it, down to
	// less than one chunk per round trip. WindowBytes stays the upper limit of the connection. The
	// ends may differ. Zero means that only WindowBytes limits the paths.
	TargetDelay int64
	// Congestion makes the congestion control of a path in place of that of TargetDelay. It is called
	// for every path of a connection. Nil means that of TargetDelay.
	Congestion func() core.Congestion
	// NoCredits lets the peers of this end send as much as their windows allow. Without it, while
	// several peers send to a port of this end, each waits for credit, and the queue in front of the
	// port stays short. The ends may differ.
	NoCredits bool
	// RecvDepth is the number of receive buffers of ChunkBytes that the connections of a PD share. Each
	// needs 16, so more than RecvDepth/16 connections are refused. Zero means 512, which is 16 or 32 MiB. QPs
	// with different send CQs have buffers of their own, up to four times as many in all.
	RecvDepth int
	// PathRecv is the number of these buffers that each path keeps on devices whose UC QPs cannot
	// use a shared receive queue. There a connection needs Paths*PathRecv buffers. Zero means 8.
	PathRecv int
	// FallBackToRC makes Wrap succeed on a device that cannot carry paths, for example because it
	// has no UC. The QPs are then the device's own, and TransportReporter reports it. Both ends need the same
	// kind of QP. False means that Wrap fails on such a device.
	FallBackToRC bool
	// GiveUp is how long a QP continues without progress, in nanoseconds. Then its requests end
	// with RETRY_EXC. Zero means 5 s. For a QP that Modify has connected, and for one whose
	// QPConfig.Path has an AckTimeout or a RetryCount, zero means the product of the two, but at
	// least 50 ms.
	GiveUp int64
	// MinProbe is the least time that a sender waits before it asks for an acknowledgement, in
	// nanoseconds. Zero means 1 ms, because the answer comes from a program that may not be
	// running.
	MinProbe int64
	// Now is the clock, in nanoseconds. Nil means the system's monotonic clock and a goroutine
	// that runs the timers. With a clock there is no goroutine: the owner calls Step (see Stepper).
	Now func() int64
}

const (
	// wireChunk is the default of Config.ChunkBytes: a lost packet costs a chunk.
	wireChunk = 32 << 10
	// callerChunk is the default where posting moves the data on the caller's core. There is no wire that loses
	// packets, and every chunk costs time of that core. Chunks of 128 KiB gain nothing more.
	callerChunk = 64 << 10
	// minChunk is the limit of Config.ChunkBytes.
	minChunk = 256
	// minShare is the number of receive buffers that a connection needs.
	minShare = 16
	// minPathRecv and maxPathRecv bound Config.PathRecv.
	minPathRecv, maxPathRecv = 4, 64
	// pathDepth is the number of chunks that a path may have in flight.
	pathDepth = 64
)

// advertised returns how many of n receive buffers the peer may use. The others wait to be posted
// again, or take messages that need no credit: control packets on data paths and duplicates.
func advertised(n int) int { return n - n/4 }

// lowWater returns how many of n receive buffers may wait to be posted again. It is less than what
// advertised keeps back.
func lowWater(n int) int { return min(max(n/16, 1), 32) }

// pathShare is the number of receive buffers of a connection whose paths have their own.
func (cfg *Config) pathShare() int { return cfg.Paths * cfg.PathRecv }

func (cfg Config) withDefaults() (Config, error) {
	cfg.Paths = cmp.Or(cfg.Paths, 16)
	cfg.Flows = cmp.Or(cfg.Flows, 1)
	cfg.ChunkBytes = cmp.Or(cfg.ChunkBytes, wireChunk)
	cfg.Window = cmp.Or(cfg.Window, 256)
	cfg.WindowBytes = cmp.Or(cfg.WindowBytes, 4<<20)
	cfg.RecvDepth = cmp.Or(cfg.RecvDepth, 512)
	cfg.PathRecv = cmp.Or(cfg.PathRecv, 8)
	cfg.MinProbe = cmp.Or(cfg.MinProbe, 1_000_000)
	for _, f := range [...]struct {
		name            string
		value, low, top int
	}{
		{"RecvDepth", cfg.RecvDepth, minShare, 1 << 15},
		{"PathRecv", cfg.PathRecv, minPathRecv, maxPathRecv},
		{"ChunkBytes", cfg.ChunkBytes, minChunk, core.MaxChunk},
	} {
		if f.value < f.low || f.value > f.top {
			return cfg, verbs.Invalidf("Config.%s is %d: want %d to %d", f.name, f.value, f.low, f.top)
		}
	}
	if cfg.TargetDelay < 0 {
		return cfg, verbs.Invalidf("Config.TargetDelay is %d: want nanoseconds, at least 0", cfg.TargetDelay)
	}
	if _, err := core.New(cfg.core(0, 1, 1)); err != nil { // checks the other fields
		return cfg, verbs.Invalidf("Config: %v", err)
	}
	return cfg, nil
}

// ChunkOn returns the ChunkBytes of Wrap(inner, cfg).
func (cfg Config) ChunkOn(inner verbs.Context) int {
	if cfg.ChunkBytes != 0 {
		return cfg.ChunkBytes
	}
	if port, err := inner.QueryPort(1); err == nil && port.OnCaller {
		return callerChunk
	}
	return wireChunk
}

// congestion returns what makes the congestion control of a path, nil if there is none.
func (cfg *Config) congestion() func() core.Congestion {
	if cfg.Congestion != nil || cfg.TargetDelay == 0 {
		return cfg.Congestion
	}
	return func() core.Congestion {
		return core.NewSwift(cfg.TargetDelay, cfg.Paths, cfg.ChunkBytes, cfg.WindowBytes)
	}
}

// core returns the configuration of one connection.
func (cfg *Config) core(sends, credit, peerCredit int) core.Config {
	return core.Config{
		Paths: cfg.Paths, Flows: cfg.Flows, Window: cfg.Window, ChunkBytes: uint32(cfg.ChunkBytes), SendDepth: max(sends, 1),
		PathDepth: pathDepth, RecvCredit: credit, PeerCredit: peerCredit, GiveUp: cfg.GiveUp,
		WindowBytes: cfg.WindowBytes, Congestion: cfg.congestion(), MinProbe: cfg.MinProbe,
		InitialRTT: cfg.MinProbe, Grants: !cfg.NoCredits, Speculative: idleCredit,
	}
}

// Stepper is implemented by wrapped contexts. With Config.Now the owner calls Step whenever
// something may have happened, and at the time that Step returned.
type Stepper interface {
	// Step does everything that is due. It returns the time of the next timer, and whether there
	// is one.
	Step() (next int64, pending bool)
}
