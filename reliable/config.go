package reliable

import (
	"cmp"

	"ibverbx/reliable/core"
	"ibverbx/verbs"
)

// Config configures a wrapped context. The zero value is a good default. Wrap returns verbs.ErrInvalid
// for values out of range.
type Config struct {
	// Carrier is the type of the QPs that carry the paths: verbs.UC, where the NIC places WRITEs; verbs.UD,
	// where software copies everything; or verbs.RC, the device's own QPs without any layer. Zero means UC if
	// the device has it, else UD, else as FallBackToRC says. It must be the same on both sides.
	Carrier verbs.QPType
	// Paths is the number of paths (UC QPs, or pairs of UD QPs) per connection, at most 256. Zero means 16. It must be the
	// same on both sides.
	Paths int
	// Flows is the maximum number of QPs in a PD that share a connection, at most 4096. Zero means 1. It
	// must be the same on both sides. QPs share a connection if they use the same send CQ, and their
	// peers do too and are in one PD. With more than 1, both sides assign the connection at the first
	// request of either. A side without capacity for another connection (see RecvBytes) fails the QP and
	// raises EventQPFatal.
	Flows int
	// ChunkBytes is the maximum payload of one message on a path, 256 bytes to 256 KiB. If the sides
	// differ, the smaller value applies. Zero means 32 KiB, or 64 KiB on a device whose port 1 has
	// verbs.PortAttr.OnCaller. On UD it is at most one datagram: the MTU of the port less 24 bytes.
	ChunkBytes int
	// Window is the maximum number of unacknowledged chunks per QP: a power of two, at most 1024. Zero
	// means 256, or 1024 on UD. It must be the same on both sides.
	Window int
	// WindowBytes fixes the limit of a connection's bytes in flight. The sides may differ. Zero means that the
	// connection adapts it to the queue in the network, or 4 MiB on a device whose port 1 has
	// verbs.PortAttr.OnCaller.
	WindowBytes int
	// NoCredits lets peers send as much as their windows allow. By default, while several peers send to
	// one port, each waits for credit, which keeps the queue in front of the port short. The sides may
	// differ.
	NoCredits bool
	// RecvBytes limits the receive buffers of a PD, of ChunkBytes each. There are 512, or 1024 on UD, and 16 per
	// connection if that is more. They are freed as connections
	// close. At the limit, connections share the buffers, at least 4 each (8 on UD), and a further one is refused
	// with verbs.ErrLimit. Zero means 256 MiB, which serves 2048 connections with chunks of 32 KiB, or 1 GiB where
	// each path has its own receives (see PathRecv).
	RecvBytes int
	// PathRecv is the number of these buffers per path on devices whose UC QPs cannot use a shared
	// receive queue. A connection then needs and allocates Paths*PathRecv buffers. Zero means 8.
	PathRecv int
	// FallBackToRC makes Wrap succeed on a device that cannot carry paths, for example one without UC.
	// The QPs are then the device's own RC QPs, as TransportReporter shows. Both sides need the same
	// kind of QP. False makes Wrap fail on such a device.
	FallBackToRC bool
	// GiveUp is the no-progress timeout in nanoseconds; requests then fail with RETRY_EXC. Zero means 5
	// s. For QPs connected by Modify, or whose Path sets AckTimeout or RetryCount, it means their
	// product, at least 50 ms.
	GiveUp int64
	// MinProbe is the minimum delay before a sender probes for an ACK, in nanoseconds. Zero means 1 ms,
	// because the response depends on the scheduling of the peer's process.
	MinProbe int64
	// Now is the clock, in nanoseconds. Nil means the system's monotonic clock and a goroutine for
	// timers. With a clock, no goroutine is started: the owner calls Step (see Stepper).
	Now func() int64
}

const (
	// wireChunk is the default of Config.ChunkBytes. A lost packet costs a chunk.
	wireChunk = 32 << 10
	// callerChunk is the default where posting moves the data on the caller's core. No wire loses packets
	// there, and every chunk costs CPU time. Chunks of 128 KiB are no faster.
	callerChunk = 64 << 10
	// callerWindow is the default of Config.WindowBytes there: no network queue has to be kept short.
	callerWindow = 4 << 20
	// adaptBytes limits the adaptive window of a connection.
	adaptBytes = 64 << 20
	// minChunk is the minimum of Config.ChunkBytes.
	minChunk = 256
	// minCardChunk is the minimum chunk size of a peer: a datagram of the smallest MTU.
	minCardChunk = 128
	// preferredShare is the number of receive buffers per connection below the limit of Config.RecvBytes.
	preferredShare = 16
	// minShare is the minimum number of receive buffers per connection.
	minShare = 4
	// sharedBytes and ownBytes are the defaults of Config.RecvBytes.
	sharedBytes, ownBytes = 256 << 20, 1 << 30
	// firstRecvs is the number of receive buffers of an engine with few connections, twice as many on UD. A share of
	// 384 chunks also bounds a connection with a larger Window, which keeps the queues of several ports short.
	firstRecvs = 512
	// growRecvs is the number of receive buffers per allocation.
	growRecvs = 64
	// maxRecvDepth is the maximum number of receive buffers per engine.
	maxRecvDepth = 1 << 15
	// minPathRecv and maxPathRecv bound Config.PathRecv.
	minPathRecv, maxPathRecv = 4, 64
	// pathDepth is the maximum number of chunks in flight per path.
	pathDepth = 64
)

// advertised returns the number of receive buffers, of n, that the peer may use. The others wait to be
// reposted, or receive messages that need no credit: control packets on data paths and duplicates.
func advertised(n int) int { return n - n/4 }

// lowWater returns the number of receive buffers, of n, that may wait to be reposted. It is below the
// number that advertised withholds.
func lowWater(n int) int { return min(max(n/16, 1), 32) }

// pathShare is the number of receive buffers of a connection whose paths have their own.
func (cfg *Config) pathShare() int { return cfg.Paths * cfg.PathRecv }

func (cfg Config) withDefaults(c *carrier) (Config, error) {
	if c.datagrams() {
		cfg.Window = cmp.Or(cfg.Window, datagramWindow)
	}
	cfg.Paths = cmp.Or(cfg.Paths, 16)
	cfg.Flows = cmp.Or(cfg.Flows, 1)
	cfg.ChunkBytes = cmp.Or(cfg.ChunkBytes, wireChunk)
	cfg.Window = cmp.Or(cfg.Window, 256)
	cfg.RecvBytes = cmp.Or(cfg.RecvBytes, sharedBytes)
	cfg.PathRecv = cmp.Or(cfg.PathRecv, 8)
	cfg.MinProbe = cmp.Or(cfg.MinProbe, 1_000_000)
	for _, f := range [...]struct {
		name            string
		value, low, top int
	}{
		{"RecvBytes", cfg.RecvBytes, minChunk, 1 << 40},
		{"PathRecv", cfg.PathRecv, minPathRecv, maxPathRecv},
		{"ChunkBytes", cfg.ChunkBytes, minChunk, core.MaxChunk},
	} {
		if f.value < f.low || f.value > f.top {
			return cfg, verbs.Invalidf("Config.%s is %d: want %d to %d", f.name, f.value, f.low, f.top)
		}
	}
	if t := cfg.Carrier; t != 0 && t != verbs.RC && t != verbs.UC && t != verbs.UD {
		return cfg, verbs.Invalidf("Config.Carrier is %d: want RC, UC, UD or 0", t)
	}
	if _, err := core.New(cfg.core(c, 0, 1, 1)); err != nil { // checks the other fields
		return cfg, verbs.Invalidf("Config: %v", err)
	}
	return cfg, nil
}

// ChunkOn returns the effective ChunkBytes of Wrap(inner, cfg) on port 1. With Carrier UD, a chunk also fits a datagram.
func (cfg Config) ChunkOn(inner verbs.Context) int {
	if cfg.ChunkBytes != 0 {
		return cfg.ChunkBytes
	}
	if inner == nil {
		return wireChunk
	}
	port, err := inner.QueryPort(1)
	switch {
	case err != nil:
		return wireChunk
	case cfg.Carrier == verbs.UD:
		return min(wireChunk, datagramPayload(&port))
	case port.OnCaller:
		return callerChunk
	}
	return wireChunk
}

// onCaller reports whether the device moves data on the caller's core.
func onCaller(inner verbs.Context) bool {
	port, err := inner.QueryPort(1)
	return err == nil && port.OnCaller
}

// core returns the configuration of one connection.
func (cfg *Config) core(c *carrier, sends, credit, peerCredit int) core.Config {
	own := core.Config{
		Paths: cfg.Paths, Flows: cfg.Flows, Window: cfg.Window, ChunkBytes: uint32(cfg.ChunkBytes), SendDepth: max(sends, 1),
		PathDepth: pathDepth, RecvCredit: credit, PeerCredit: peerCredit, GiveUp: cfg.GiveUp,
		WindowBytes: cmp.Or(cfg.WindowBytes, adaptBytes), Adapt: cfg.WindowBytes == 0, MinProbe: cfg.MinProbe,
		InitialRTT: cfg.MinProbe, Grants: !cfg.NoCredits, Speculative: idleCredit,
	}
	c.describe(&own)
	return own
}

// Stepper is implemented by wrapped contexts. With Config.Now, the owner calls Step after every possible
// change and at the time returned by the previous Step.
type Stepper interface {
	// Step runs all expired timers and pending work. It returns the next deadline; pending is false if no
	// timer is armed.
	Step() (next int64, pending bool)
}
