package softnic

import (
	"fmt"
	"net/netip"
	"slices"

	"ibverbx/internal/roce"
	"ibverbx/verbs"
)

// Limits of every softnic, modeled on a mid-size ConnectX where they matter.
const (
	maxMsgSize  = 1 << 30
	maxQP       = 1<<16 - 1
	maxMR       = 1<<16 - 1
	maxCQ       = 1 << 16
	maxSRQ      = 1 << 16
	maxPD       = 1 << 16
	maxAH       = 1<<16 - 1
	maxWR       = 1 << 15
	maxCQE      = 1 << 22
	maxInline   = 1024
	maxSGE      = 16
	maxRdAtomic = 16
	maxEvents   = 4096
	pkeys       = 1 // rows of the P_Key table: the default partition

	// maxDeviceEvents is the number of device, port and CQ events that may be queued beyond maxEvents.
	maxDeviceEvents = 256

	// maxWindow is the maximum number of unacknowledged packets of a requester: half the PSN space
	// (IBTA 1.4 section 9.7.2).
	maxWindow = roce.PSNHalf

	// maxReadAhead is the longest message in packets of the largest MTU.
	maxReadAhead = maxMsgSize >> 12
)

// Config configures a NIC. The zero value means the defaults.
type Config struct {
	// Name is the device's name. Empty means "soft" and the number of earlier NICs on the link. Set it
	// if a program uses several links.
	Name string
	// Addr is the port's address, in GID table row 1. Zero means a free address in 198.18.0.0/15. On a
	// UDPLink it is a host address, in row 0, and zero means the next of UDPConfig.Addrs.
	Addr netip.Addr
	// MTU is the port's MTU. Zero means 4096 bytes, or on a UDPLink the largest that fits the interface.
	MTU verbs.MTU
	// Seed makes keys, packet sequence numbers and QP numbers reproducible, for simulations. QP numbers
	// are then the same on every NIC. Zero means unpredictable random values.
	Seed uint64
	// Staging limits the host memory, in bytes per device, used to stage device memory
	// (verbs.Memory.Device) over UDP and between processes. Buffers are allocated on demand. Zero means
	// 32 MiB; the minimum is 1 MiB.
	Staging int
	// QPTypes lists the supported QP types. Nil means RC, UC and UD. PD.CreateQP returns
	// verbs.ErrNotSupported for other types.
	QPTypes []verbs.QPType
}

func (cfg Config) withDefaults(ordinal uint32) Config {
	if cfg.Name == "" {
		cfg.Name = fmt.Sprintf("soft%d", ordinal-1)
	}
	setDefault(&cfg.MTU, verbs.MTU4096)
	setDefault(&cfg.Staging, defaultStaging)
	cfg.Staging = max(cfg.Staging, minStaging)
	return cfg
}

func (cfg Config) validate() error {
	if cfg.MTU != 0 && cfg.MTU.Bytes() == 0 {
		return verbs.Invalidf("Config.MTU is code %d: want verbs.MTU256 to verbs.MTU4096", uint8(cfg.MTU))
	}
	for _, t := range cfg.QPTypes {
		if t != verbs.RC && t != verbs.UC && t != verbs.UD {
			return verbs.Invalidf("Config.QPTypes has type %d: want RC, UC and UD", t)
		}
	}
	if cfg.Staging < 0 {
		return verbs.Invalidf("Config.Staging is %d: want 0 or more", cfg.Staging)
	}
	return nil
}

// has reports whether the NIC supports QPs of a type.
func (cfg *Config) has(t verbs.QPType) bool {
	return cfg.QPTypes == nil || slices.Contains(cfg.QPTypes, t)
}

// typeCaps returns the capabilities that depend on the QP types.
func (cfg *Config) typeCaps() (caps verbs.Capabilities) {
	if cfg.has(verbs.RC) {
		caps |= verbs.CapRC
	}
	if cfg.has(verbs.UC) {
		caps |= verbs.CapUC | verbs.CapSRQOnUC
	}
	if cfg.has(verbs.UD) {
		caps |= verbs.CapUD | verbs.CapSRQOnUD
	}
	return caps
}

// setDefault replaces the zero value of a field.
func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// bounded is a configuration field with a range of 0 to max.
type bounded struct {
	name       string
	value, max int
}

// checkRanges returns an error for the first field out of range.
func checkRanges(config string, fields ...bounded) error {
	for _, f := range fields {
		if f.value < 0 || f.value > f.max {
			return verbs.Invalidf("%s.%s is %d: want 0 to %d", config, f.name, f.value, f.max)
		}
	}
	return nil
}
