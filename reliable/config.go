package reliable

import (
	"ibverbx/reliable/core"
	"ibverbx/verbs"
)

// Config describes a wrapped context. The zero value is a good one.
type Config struct {
	// Paths is how many UC QPs a wrapped QP is made of, at most 256. Zero means 16.
	// Both ends need the same.
	Paths int
	// Flows is how many QPs of a PD share one set of paths, at most 4096. They are put
	// together in the order in which they are created, which must be the same at both ends:
	// the first so many QPs make up a connection, the next the second one, and so on. Zero
	// means 1. Both ends need the same.
	Flows int
	// ChunkBytes is the most that one message on a path carries. Zero means 32 KiB.
	ChunkBytes int
	// Window is how many chunks of a QP may be unacknowledged, a power of two, at most
	// 256. Zero means 256. Both ends need the same.
	Window int
	// WindowBytes is how many bytes of a QP may be in flight. Zero means 4 MiB.
	WindowBytes int
	// TargetDelay makes the bytes in flight follow the round trip time, in nanoseconds: one
	// chunk more per round trip as long as it is within TargetDelay, less when it is beyond,
	// and WindowBytes at the most (Swift). The ends may differ. Zero means a window that does
	// not change.
	TargetDelay int64
	// Credits makes senders wait for credit of the receiver, so that many senders do not fill
	// the queue in front of its link: a receiver grants to all its QPs together what its link
	// carries, in turn. Both ends need the same. Zero is without.
	Credits bool
	// CreditRate is how many bytes per second of payload each port of this end grants: a
	// little less than its link carries after headers. The ends may differ. Zero means 95 %
	// of the speed of the port, and of 100 Gb/s if the device does not tell it.
	CreditRate float64
	// Speculative is how many bytes of credit a QP that is idle has in hand, to send without
	// asking first. Zero means 128 KiB. With Credits both ends need the same.
	Speculative int
	// RecvDepth is how many buffers of ChunkBytes each PD keeps for what arrives, and so
	// the memory that a PD costs. Connections, of Flows QPs each, share them; each needs
	// 16, and more than RecvDepth/16 are refused. Zero means 512, which is 16 MiB.
	RecvDepth int
	// PathRecv is how many of these buffers each path keeps where UC QPs cannot use a
	// shared receive queue: then a connection needs Paths*PathRecv of them. Zero means 8.
	PathRecv int
	// FallBackToRC makes Wrap return, where a device has no UC or lacks something else
	// that paths need, a context whose QPs are the device's own. Both ends need the same kind of
	// QP; Carrier says which it is. False means that Wrap fails.
	FallBackToRC bool
	// GiveUp is how long, in nanoseconds, a QP goes on without any progress; then its
	// requests end with RETRY_EXC. Zero means 5 s, or, for a QP that Modify has
	// connected, what its Timeout and RetryCount say, but at least 50 ms.
	GiveUp int64
	// MinProbe is the least that a sender waits, in nanoseconds, before it asks for an
	// acknowledgement. Zero means 1 ms: the answer comes from a program that may not be
	// running.
	MinProbe int64
	// Now is the clock, in nanoseconds. Nil means the monotonic clock of the system and
	// a goroutine that does what is due. With a clock there is no goroutine: the owner
	// calls Step (see Stepper).
	Now func() int64
}

const (
	// minShare is how many receive buffers a QP needs.
	minShare = 16
	// A path that has its own receives has at least and at most so many.
	minPathRecv, maxPathRecv = 4, 64
)

// advertised is how many of n receive buffers a peer is told of. The others are those that
// wait to be posted again, and for what comes without credit: control packets on data paths,
// and chunks that are repeated although they have arrived.
func advertised(n int) int { return n - n/4 }

// lowWater is how many of n receive buffers may wait to be posted again: less than what
// advertised keeps back.
func lowWater(n int) int { return min(max(n/16, 1), 32) }

func (cfg Config) withDefaults() (Config, error) {
	if cfg.Paths == 0 {
		cfg.Paths = 16
	}
	if cfg.Flows == 0 {
		cfg.Flows = 1
	}
	if cfg.ChunkBytes == 0 {
		cfg.ChunkBytes = 32 << 10
	}
	if cfg.Window == 0 {
		cfg.Window = 256
	}
	if cfg.WindowBytes == 0 {
		cfg.WindowBytes = 4 << 20
	}
	if cfg.Speculative == 0 {
		cfg.Speculative = 128 << 10
	}
	if cfg.RecvDepth == 0 {
		cfg.RecvDepth = 512
	}
	if cfg.PathRecv == 0 {
		cfg.PathRecv = 8
	}
	if cfg.MinProbe == 0 {
		cfg.MinProbe = 1_000_000
	}
	if cfg.RecvDepth < minShare || cfg.RecvDepth > 1<<15 {
		return cfg, verbs.Invalidf("Config.RecvDepth is %d: want %d to %d", cfg.RecvDepth, minShare, 1<<15)
	}
	if cfg.PathRecv < minPathRecv || cfg.PathRecv > maxPathRecv {
		return cfg, verbs.Invalidf("Config.PathRecv is %d: want %d to %d", cfg.PathRecv, minPathRecv, maxPathRecv)
	}
	if cfg.ChunkBytes < 256 || cfg.ChunkBytes > core.MaxChunk {
		return cfg, verbs.Invalidf("Config.ChunkBytes is %d: want 256 to %d", cfg.ChunkBytes, core.MaxChunk)
	}
	if cfg.TargetDelay < 0 {
		return cfg, verbs.Invalidf("Config.TargetDelay is %d: want nanoseconds, at least 0", cfg.TargetDelay)
	}
	if !(cfg.CreditRate >= 0 && cfg.CreditRate <= maxCreditRate) {
		return cfg, verbs.Invalidf("Config.CreditRate is %v: want bytes per second, 0 to %v", cfg.CreditRate, maxCreditRate)
	}
	// The rest is checked by the core.
	if _, err := core.New(cfg.core(0, 1, 1)); err != nil {
		return cfg, verbs.Invalidf("Config: %v", err)
	}
	return cfg, nil
}

// pathDepth is how many transmissions a path may have under way.
const pathDepth = 64

// congestion returns what bounds the bytes in flight of one connection.
func (cfg *Config) congestion() core.Congestion {
	if cfg.TargetDelay > 0 {
		return core.NewSwift(cfg.TargetDelay, cfg.ChunkBytes, cfg.WindowBytes)
	}
	return &core.FixedWindow{Bytes: cfg.WindowBytes}
}

// core returns the configuration of a connection.
func (cfg *Config) core(sends, credit, peerCredit int) core.Config {
	return core.Config{
		Paths: cfg.Paths, Flows: cfg.Flows, Window: cfg.Window, ChunkBytes: uint32(cfg.ChunkBytes), SendDepth: max(sends, 1),
		PathDepth: pathDepth, RecvCredit: credit, PeerCredit: peerCredit, GiveUp: cfg.GiveUp,
		Congestion: cfg.congestion(), MinProbe: cfg.MinProbe,
		InitialRTT: cfg.MinProbe, Credits: cfg.Credits, Speculative: cfg.Speculative,
	}
}

// Stepper is implemented by wrapped contexts. With Config.Now the owner calls Step whenever
// something may have happened, and at the time that it returns.
type Stepper interface {
	// Step does what is due. It returns when something is due next, and whether
	// anything is.
	Step() (next int64, pending bool)
}
