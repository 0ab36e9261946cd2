package core

import (
	"cmp"
	"errors"
	"fmt"

	"ibverbx/reliable/wire"
)

// Limits of a connection.
const (
	MaxPaths  = 256
	MaxFlows  = 1 << 12
	MaxWindow = 64 * wire.MaxAckWords
	MaxChunk  = 256 << 10
	minChunk  = 16

	maxSendDepth = 1 << 15
)

// ErrConfig is wrapped by the errors of New and Open about an invalid field.
var ErrConfig = errors.New("invalid configuration")

// Config describes a connection. Times are in nanoseconds.
type Config struct {
	// Paths is the number of paths, the same at both ends. Zero means 16.
	Paths int
	// Flows is the number of flows that can be opened, at most MaxFlows. Zero means 1.
	Flows int
	// Window is the number of chunks of a flow that may be unacknowledged: a power of two, at most
	// MaxWindow, the same at both ends. Zero means 256.
	Window int
	// ChunkBytes is the payload limit of one transmission. Zero means 32 KiB.
	ChunkBytes uint32
	// SendDepth is the number of messages of a flow that may be posted and not completed. Zero means
	// 256.
	SendDepth int
	// PathDepth is the number of transmissions that one path may have in flight, a power of two.
	// Zero means 64.
	PathDepth int
	// RecvCredit is the number of receives for the connection that the peer may use. The owner keeps
	// an eighth more posted, for duplicates. Zero means Window.
	RecvCredit int
	// PeerCredit is the peer's RecvCredit, as far as it is known before its first acknowledgement.
	// Zero means 1.
	PeerCredit int
	// PathCredit reports that the peer's receives belong to its paths, an equal part to each, and
	// that no path can use those of another.
	PathCredit bool
	// WindowBytes is the number of bytes of all flows that may be in flight. One chunk always may.
	// Zero means 4 MiB.
	WindowBytes int
	// Congestion makes the congestion control of a path, within WindowBytes. New calls it once per
	// path. Nil means that only WindowBytes limits the paths.
	Congestion func() Congestion
	// Grants makes this end limit what the peer sends, by what its owner grants (see Pacer).
	Grants bool
	// PeerGrants makes this end wait for credit from the peer, which has Grants.
	PeerGrants bool
	// Speculative is the credit of a sender before any is granted and whenever it is idle, in bytes.
	// Both ends should have the same value. Zero means 128 KiB.
	Speculative int
	// Rate is the expected rate of a path in bytes per second. It converts bytes in flight to delay.
	// Zero means 3e9: no path has a link of 100 Gb/s to itself, and a path with more in flight than
	// others should wait.
	Rate float64

	// InitialRTT is the assumed round trip time before one was measured. Zero means 100 us.
	InitialRTT int64
	// FixedRTT is the assumed value of every round trip time. Zero means that they are measured.
	FixedRTT int64
	// MinProbe is the least time beyond a round trip that a sender waits for an acknowledgement
	// before it asks for one. Zero means 50 us.
	MinProbe int64
	// MaxProbe bounds that time when it doubles. Zero means 64 ms.
	MaxProbe int64
	// MinReorder is the least difference between paths before a chunk is considered lost. Zero means
	// 5 us.
	MinReorder int64
	// GiveUp is how long a flow continues without progress. Then it fails with RETRY_EXC. Zero means
	// 5 s.
	GiveUp int64
	// RecvPatience is how long a flow waits for a receive of the peer. Then it fails with
	// RNR_RETRY_EXC. Zero means forever.
	RecvPatience int64
	// AckDelay is how long an acknowledgement may wait for more to acknowledge. Zero means 50 us.
	AckDelay int64
	// Recovery is the pause before a path that went down is tried again. It doubles with every
	// attempt, up to 64 times this value. Zero means 1 ms.
	Recovery int64
	// MaxAge is how long a measurement of a path is valid without a new one. Zero means 10 ms.
	MaxAge int64
	// Seed is the seed of the random choices of paths. Zero is a valid seed.
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
		{"Speculative", int64(cfg.Speculative), 1, 1 << 30},
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
	if !(cfg.Rate > 0) {
		return fmt.Errorf("%w: Rate is %v, want bytes per second above 0", ErrConfig, cfg.Rate)
	}
	return nil
}

const (
	// never is a time that does not come.
	never = 1<<63 - 1
	// maxDuration is the limit of every time in a Config, one hour. Sums stay far from never.
	maxDuration = 3600 * 1_000_000_000
)
