package core

import (
	"cmp"
	"errors"
	"fmt"

	"ibverbx/reliable/wire"
)

// Connection limits.
const (
	MaxPaths  = 256                   // paths per connection
	MaxFlows  = 1 << 12               // flows per connection
	MaxWindow = 64 * wire.MaxAckWords // unacknowledged chunks per flow
	MaxChunk  = 256 << 10             // payload bytes of a chunk
	minChunk  = 16

	maxSendDepth = 1 << 15
)

// ErrConfig is wrapped by errors of New and Open about an invalid field.
var ErrConfig = errors.New("invalid configuration")

// Carrier describes the QPs of paths by their properties. The zero value is UC.
type Carrier struct {
	// Software is set when software places all bytes, including first transmissions. The fence is then
	// unnecessary, and a chunk may be retransmitted on any path. It must be the same on both sides.
	Software bool
	// Unordered is set when a path may reorder messages. A chunk then counts as lost when the third one
	// after it on its path, or a later one, has arrived.
	Unordered bool
	// Shared is set when the QP of a path also serves other connections and outlives the path's failure. A
	// path that is down is then tested again without ActRebuild, and its transmissions refer to memory until
	// EvSent or ActReset. It requires Software.
	Shared bool
	// AckBytes is the number of received bytes after which an acknowledgement leaves at once. Senders
	// request one after twice as many. Zero means four chunks or 128 KiB, and eight chunks.
	AckBytes int
	// Burst is the number of bytes in a row that go to one path. Zero means one chunk, or half of it in
	// small chunks.
	Burst int
}

// Config configures a connection. Times are in nanoseconds.
type Config struct {
	// Paths is the number of paths, at most MaxPaths. It must be the same on both sides. Zero means 16.
	Paths int
	// Flows is the maximum number of flows, at most MaxFlows. Zero means 1.
	Flows int
	// Window is the maximum number of unacknowledged chunks per flow: a power of two, at most MaxWindow.
	// It must be the same on both sides. Zero means 256.
	Window int
	// ChunkBytes is the maximum payload of one transmission in bytes. Zero means 32 KiB.
	ChunkBytes uint32
	// SendDepth is the maximum number of outstanding messages per flow. Zero means 256.
	SendDepth int
	// Carrier describes the QPs of the paths.
	Carrier Carrier
	// PathDepth is the maximum number of transmissions in flight per path, a power of two. Zero means
	// 64.
	PathDepth int
	// RecvCredit is the number of the connection's receives that the peer may use. The owner keeps an
	// eighth more posted, for duplicates. Zero means Window.
	RecvCredit int
	// PeerCredit is the peer's RecvCredit, as known before its first acknowledgement. Zero means 1.
	PeerCredit int
	// PathCredit is set when the peer's receives are split evenly among its paths and cannot be shared
	// between them.
	PathCredit bool
	// WindowBytes limits the bytes in flight of all flows. One chunk is always allowed. Zero means 4
	// MiB.
	WindowBytes int
	// Adapt adapts the bytes in flight to the queue in the network, within WindowBytes.
	Adapt bool
	// Allowance is the queue in bytes that Adapt aims at, at least two chunks. Zero means 64 KiB.
	Allowance int
	// Grants makes this side limit the peer's sends to the credit that its owner grants (see Pacer).
	Grants bool
	// PeerGrants makes this side wait for credit from the peer, which sets Grants.
	PeerGrants bool
	// Speculative is a sender's credit in bytes before any is granted, and whenever it is idle. Both
	// sides should use the same value. Zero means 128 KiB.
	Speculative int
	// Rate is the expected rate of a path in bytes per second. It converts bytes in flight to delay.
	// Zero means 3e9: paths share a 100 Gb/s link, and a path with more in flight than others should
	// wait.
	Rate float64

	// InitialRTT is the assumed round-trip time before the first measurement. Zero means 100 us.
	InitialRTT int64
	// FixedRTT replaces all round-trip measurements. Zero means that they are measured.
	FixedRTT int64
	// MinProbe is the minimum delay beyond a round trip before a sender probes for an acknowledgement.
	// Zero means 50 us.
	MinProbe int64
	// MaxProbe is the upper limit of that delay, which doubles with each probe. Zero means 64 ms.
	MaxProbe int64
	// MinReorder is the minimum delay difference between paths before a chunk is considered lost. Zero
	// means 5 us.
	MinReorder int64
	// GiveUp is the no-progress timeout of a flow, which then fails with RETRY_EXC. Zero means 5 s.
	GiveUp int64
	// RecvPatience is the timeout of a flow that waits for a receive of the peer; it then fails with
	// RNR_RETRY_EXC. Zero disables it.
	RecvPatience int64
	// AckDelay is the maximum delay of an acknowledgement, used to coalesce several. Zero means 50 us.
	AckDelay int64
	// Recovery is the delay before a lost path is retried. It doubles with every attempt, up to 64 times
	// this value. Zero means 1 ms.
	Recovery int64
	// MaxAge is the validity period of a path measurement. Zero means 10 ms.
	MaxAge int64
	// Seed seeds the random path choices. Zero is a valid seed.
	Seed uint64
}

// withDefaults returns cfg with every zero replaced, or an error about an invalid field.
func (cfg Config) withDefaults() (Config, error) {
	cfg.Paths = cmp.Or(cfg.Paths, 16)
	cfg.Flows = cmp.Or(cfg.Flows, 1)
	cfg.Window = cmp.Or(cfg.Window, 256)
	cfg.ChunkBytes = cmp.Or(cfg.ChunkBytes, 32<<10)
	cfg.SendDepth = cmp.Or(cfg.SendDepth, 256)
	cfg.PathDepth = cmp.Or(cfg.PathDepth, 64)
	cfg.RecvCredit = cmp.Or(cfg.RecvCredit, cfg.Window)
	cfg.PeerCredit = cmp.Or(cfg.PeerCredit, 1)
	cfg.WindowBytes = cmp.Or(cfg.WindowBytes, 4<<20)
	cfg.Allowance = cmp.Or(cfg.Allowance, defaultAllowance)
	cfg.Speculative = cmp.Or(cfg.Speculative, 128<<10)
	cfg.Rate = cmp.Or(cfg.Rate, 3e9)
	cfg.InitialRTT = cmp.Or(cfg.FixedRTT, cfg.InitialRTT, 100_000)
	cfg.MinProbe = cmp.Or(cfg.MinProbe, 50_000)
	cfg.MaxProbe = cmp.Or(cfg.MaxProbe, 64_000_000)
	cfg.MinReorder = cmp.Or(cfg.MinReorder, 5_000)
	cfg.GiveUp = cmp.Or(cfg.GiveUp, 5_000_000_000)
	cfg.AckDelay = cmp.Or(cfg.AckDelay, 50_000)
	cfg.Recovery = cmp.Or(cfg.Recovery, 1_000_000)
	cfg.MaxAge = cmp.Or(cfg.MaxAge, 10_000_000)
	return cfg, cfg.validate()
}

func (cfg *Config) validate() error {
	for _, f := range [...]struct {
		name            string
		value, low, top int64
	}{
		{"Paths", int64(cfg.Paths), 1, MaxPaths},
		{"Flows", int64(cfg.Flows), 1, MaxFlows},
		{"Window", int64(cfg.Window), 2, MaxWindow},
		{"ChunkBytes", int64(cfg.ChunkBytes), minChunk, MaxChunk},
		{"SendDepth", int64(cfg.SendDepth), 1, maxSendDepth},
		{"PathDepth", int64(cfg.PathDepth), 2, 1 << 12},
		{"RecvCredit", int64(cfg.RecvCredit), 1, 1<<16 - 1},
		{"PeerCredit", int64(cfg.PeerCredit), 1, 1<<16 - 1},
		{"WindowBytes", int64(cfg.WindowBytes), 1, 1 << 40},
		{"Allowance", int64(cfg.Allowance), 1, 1 << 30},
		{"Speculative", int64(cfg.Speculative), 1, 1 << 30},
		{"AckBytes", int64(cfg.Carrier.AckBytes), 0, 1 << 30},
		{"Burst", int64(cfg.Carrier.Burst), 0, 1 << 30},
		{"InitialRTT", cfg.InitialRTT, 1, maxDuration},
		{"FixedRTT", cfg.FixedRTT, 0, maxDuration},
		{"MinProbe", cfg.MinProbe, 1, maxDuration},
		{"MaxProbe", cfg.MaxProbe, 1, maxDuration},
		{"MinReorder", cfg.MinReorder, 1, maxDuration},
		{"GiveUp", cfg.GiveUp, 1, maxDuration},
		{"RecvPatience", cfg.RecvPatience, 0, maxDuration},
		{"AckDelay", cfg.AckDelay, 1, maxDuration},
		{"Recovery", cfg.Recovery, 1, maxDuration},
		{"MaxAge", cfg.MaxAge, 1, maxDuration},
	} {
		if f.value < f.low || f.value > f.top {
			return fmt.Errorf("%w: %s is %d, want %d to %d", ErrConfig, f.name, f.value, f.low, f.top)
		}
	}
	for _, f := range [...]struct {
		name  string
		value int
	}{{"Window", cfg.Window}, {"PathDepth", cfg.PathDepth}} {
		if f.value&(f.value-1) != 0 {
			return fmt.Errorf("%w: %s is %d, want a power of two", ErrConfig, f.name, f.value)
		}
	}
	if cfg.Carrier.Shared && !cfg.Carrier.Software {
		return fmt.Errorf("%w: Shared is set without Software, and shared QPs cannot keep the fence", ErrConfig)
	}
	if !(cfg.Rate > 0) {
		return fmt.Errorf("%w: Rate is %v, want bytes per second above 0", ErrConfig, cfg.Rate)
	}
	return nil
}

const (
	// never is the time of a timer that is not armed.
	never = 1<<63 - 1
	// maxDuration is the maximum of every time in a Config, one hour. Sums stay far below never.
	maxDuration = 3600 * 1_000_000_000
)
