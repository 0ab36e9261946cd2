package core

import (
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

// ErrConfig says that a Config has a field that cannot be.
var ErrConfig = errors.New("invalid configuration")

// Config describes a connection. Both ends need the same Paths and Window.
type Config struct {
	// Paths is the number of paths. Zero means 16.
	Paths int
	// Flows is how many flows there may be, at most MaxFlows. Zero means 1.
	Flows int
	// Window is how many chunks of a flow may be unacknowledged: a power of two, at most
	// MaxWindow. Zero means 256.
	Window int
	// ChunkBytes is the most that one transmission carries. Zero means 32 KiB.
	ChunkBytes uint32
	// SendDepth is how many messages of a flow may be posted and not completed. Zero means 256.
	SendDepth int
	// PathDepth is how many transmissions one path may have under way, a power of
	// two. Zero means 64.
	PathDepth int
	// RecvCredit is how many receives this end keeps posted for the connection, of
	// which it tells the peer; it needs an eighth more for what is repeated in vain. Zero
	// means Window.
	RecvCredit int
	// PeerCredit is the peer's RecvCredit, as far as it is known before its first
	// acknowledgement. Zero means 1.
	PeerCredit int
	// PathCredit says that the receives of which the peer tells are those of its paths
	// together, an equal part for each, and that no path can use those of another.
	PathCredit bool
	// Congestion bounds the bytes in flight. Nil means a FixedWindow of 4 MiB.
	Congestion Congestion
	// Credits makes senders wait for credit of the receiver (see Pacer). Both ends
	// need the same, and owners that grant.
	Credits bool
	// Speculative is how many bytes of credit a sender has in hand, before any are
	// granted and whenever it is idle, the same at both ends. Zero means 128 KiB.
	Speculative int
	// Rate is what a path is expected to carry, in bytes per second; with it bytes in
	// flight are compared with round trip times. Zero means 3e9: no path has a link of
	// 100 Gb/s to itself, and one that has more in flight than others should wait.
	Rate float64

	// InitialRTT is what a round trip counts as before one was measured, in
	// nanoseconds like all times here. Zero means 100 us.
	InitialRTT int64
	// FixedRTT is what every round trip counts as, measured or not. Zero means that
	// they are measured.
	FixedRTT int64
	// MinProbe is the least that a sender waits for an acknowledgement beyond a round
	// trip before it asks for one. Zero means 50 us.
	MinProbe int64
	// MaxProbe bounds that wait when it doubles. Zero means 64 ms.
	MaxProbe int64
	// MinReorder is the least by which paths may differ before a chunk counts as
	// lost. Zero means 5 us.
	MinReorder int64
	// GiveUp is how long a flow goes on without any progress; then it fails with
	// RETRY_EXC. Zero means 5 s.
	GiveUp int64
	// RecvPatience is how long a flow waits for a receive of the peer; then it fails with
	// RNR_RETRY_EXC. Zero means for ever.
	RecvPatience int64
	// AckDelay is how long an acknowledgement may wait for more to acknowledge. Zero
	// means 50 us.
	AckDelay int64
	// Recovery is the pause before a path that went down is tried again; it doubles
	// with every attempt up to 64 times this. Zero means 1 ms.
	Recovery int64
	// MaxAge is how long a measurement of a path counts if it is not used. Zero means
	// 10 ms.
	MaxAge int64
	// Seed decides the random choices of paths. Zero is a seed like any other.
	Seed uint64
}

// withDefaults returns cfg with every zero replaced, or what is wrong with it.
func (cfg Config) withDefaults() (Config, error) {
	setDefault(&cfg.Paths, 16)
	setDefault(&cfg.Flows, 1)
	setDefault(&cfg.Window, 256)
	setDefault(&cfg.ChunkBytes, 32<<10)
	setDefault(&cfg.SendDepth, 256)
	setDefault(&cfg.PathDepth, 64)
	setDefault(&cfg.RecvCredit, cfg.Window)
	setDefault(&cfg.PeerCredit, 1)
	setDefault(&cfg.Speculative, 128<<10)
	setDefault(&cfg.Rate, 3e9)
	setDefault(&cfg.InitialRTT, 100_000)
	setDefault(&cfg.MinProbe, 50_000)
	setDefault(&cfg.MaxProbe, 64_000_000)
	setDefault(&cfg.MinReorder, 5_000)
	setDefault(&cfg.GiveUp, 5_000_000_000)
	setDefault(&cfg.AckDelay, 50_000)
	setDefault(&cfg.Recovery, 1_000_000)
	setDefault(&cfg.MaxAge, 10_000_000)
	if cfg.FixedRTT != 0 {
		cfg.InitialRTT = cfg.FixedRTT
	}
	if cfg.Congestion == nil {
		cfg.Congestion = &FixedWindow{Bytes: 4 << 20}
	}
	return cfg, cfg.validate()
}

func setDefault[T int | int64 | uint32 | float64](v *T, d T) {
	if *v == 0 {
		*v = d
	}
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
	// maxDuration bounds every time of a Config, one hour: sums stay far from never.
	maxDuration = 3600 * 1_000_000_000
)
