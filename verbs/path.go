package verbs

import "fmt"

// ExplicitZero stands for 0 in a field, such as those of PathConfig, whose zero value means a default.
const ExplicitZero = -1

// PathConfig is how Connect sets up the path of a QP: quality of service, addresses and
// retries. It describes the packets and the patience of this side only; the peer has its
// own. The zero value means the defaults.
type PathConfig struct {
	// TrafficClass is the IP traffic class (IPv4: TOS) of the packets. The upper six bits
	// are the DSCP, so DSCP 26 is 104. InfiniBand packets have one only if they have a GRH.
	TrafficClass uint8
	// SL is the service level, at most 15. Ethernet has 0 to 7, as VLAN priorities.
	SL uint8
	// HopLimit is how many routers may pass a packet on (IPv4: TTL). Zero means 64. For RoCE v2 of
	// a real NIC the Linux kernel takes it from the route instead.
	HopLimit uint8
	// PKeyIndex is the row of the port's P_Key table: the partition of the QP.
	PKeyIndex uint16
	// GIDIndex is the row of the port's GID table with the source address, at most 255. Zero
	// means that the provider chooses, or that QPConfig.GID decides. ExplicitZero means row 0.
	GIDIndex int
	// AckTimeout is the code of the acknowledgement timeout (function AckTimeout), 1 to 31.
	// Zero means DefaultTimeout. ExplicitZero means to wait forever.
	AckTimeout int8
	// RetryCount is how often a request is retransmitted after a timeout, 1 to 7. Zero means
	// DefaultRetryCount. ExplicitZero means never.
	RetryCount int8
	// RNRRetry is how often a request is retransmitted because the peer had no receive, 1
	// to 7, where 7 means no limit. Zero means DefaultRNRRetry. ExplicitZero means never.
	RNRRetry int8
	// MinRNRTimer is the code for how long the peer waits after it found no receive here
	// (RNRTimer), 1 to 31. Zero means DefaultMinRNRTimer. ExplicitZero means code 0, 655 ms.
	MinRNRTimer int8
	// Seal makes the provider encrypt and authenticate the packets of the QP. The peer's QP must have a Seal
	// with the same secret. It needs CapSeal. Nil means plain packets.
	Seal Seal
}

// Seal is a secret that two processes share for one session. The provider makes it (softnic.NewSeal).
// Providers refuse Seals of others.
type Seal interface {
	// Sealed does nothing. It tells Seals apart from other types.
	Sealed()
}

// Check checks the path against the port that it is on, and against the GID that is wanted. It
// returns the row of the GID table that the path names, or -1 if it names none.
func (p *PathConfig) Check(port *PortAttr, gid GID) (row int, err error) {
	for _, f := range [...]struct {
		name        string
		v, min, max int
	}{
		{"SL", int(p.SL), 0, 15},
		{"PKeyIndex", int(p.PKeyIndex), 0, max(port.PKeys-1, 0)},
		{"GIDIndex", p.GIDIndex, ExplicitZero, min(max(port.GIDs-1, 0), 255)},
		{"AckTimeout", int(p.AckTimeout), ExplicitZero, 31},
		{"RetryCount", int(p.RetryCount), ExplicitZero, 7},
		{"RNRRetry", int(p.RNRRetry), ExplicitZero, 7},
		{"MinRNRTimer", int(p.MinRNRTimer), ExplicitZero, 31},
	} {
		if f.v < f.min || f.v > f.max {
			return -1, Invalidf("Path.%s is %d: want %d to %d", f.name, f.v, f.min, f.max)
		}
	}
	switch {
	case p.GIDIndex == 0:
		return -1, nil
	case !gid.IsZero():
		return -1, Invalidf("Path.GIDIndex is %d and the GID is %s: set one of them", p.GIDIndex, gid)
	}
	return max(p.GIDIndex, 0), nil
}

// SGIDIndex returns the row of a port's GID table with a QP's source address: GIDIndex or, if that
// is zero, the row of gid. Each version of RoCE has a row for the same GID; that of RoCE v2 is
// taken. A zero GID is that of an InfiniBand port whose address is its LID, and has row 0.
func (p *PathConfig) SGIDIndex(ctx Context, port uint8, gid GID) (int, error) {
	if p.GIDIndex != 0 || gid.IsZero() {
		return max(p.GIDIndex, 0), nil
	}
	attr, err := ctx.QueryPort(int(port))
	if err != nil {
		return 0, err
	}
	var best GIDEntry
	for i := range attr.GIDs {
		if row, err := ctx.QueryGID(int(port), i); err == nil && row.GID == gid && (best.GID.IsZero() || row.Type > best.Type) {
			best = row
		}
	}
	if best.GID.IsZero() {
		return 0, fmt.Errorf("%w: GID %s is not in the table of port %d of %s", ErrNotFound, gid, port, ctx.Device().Name())
	}
	return best.Index, nil
}

// Apply sets the path's values in the attributes that ConnectAttr returns.
func (p *PathConfig) Apply(a *QPAttr) {
	a.AH.TrafficClass, a.AH.SL, a.AH.Seal, a.PKeyIndex = p.TrafficClass, p.SL, p.Seal, p.PKeyIndex
	if p.HopLimit != 0 {
		a.AH.HopLimit = p.HopLimit
	}
	for _, f := range [...]struct {
		to *uint8
		v  int8
	}{{&a.Timeout, p.AckTimeout}, {&a.RetryCount, p.RetryCount}, {&a.RNRRetry, p.RNRRetry}, {&a.MinRNRTimer, p.MinRNRTimer}} {
		if f.v != 0 {
			*f.to = uint8(max(f.v, 0))
		}
	}
}
