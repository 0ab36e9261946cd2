package verbs

import "fmt"

// ExplicitZero sets a field to 0 where the zero value means a default, as in PathConfig.
const ExplicitZero = -1

// PathConfig configures a QP's path for Connect: quality of service, addresses and retries. It applies
// to local packets and local retries only; the peer has its own. The zero value means the defaults.
type PathConfig struct {
	// TrafficClass is the IP traffic class (IPv4: TOS). The upper six bits are the DSCP, so DSCP 26 is
	// 104. InfiniBand packets carry it only with a GRH.
	TrafficClass uint8
	// SL is the service level, 0 to 15; on Ethernet the VLAN priority, 0 to 7.
	SL uint8
	// HopLimit is the maximum number of hops (IPv4: TTL). Zero means 64. For RoCE v2 on real NICs, the
	// Linux kernel uses the route's limit instead.
	HopLimit uint8
	// PKeyIndex is the QP's partition: its row in the port's P_Key table.
	PKeyIndex uint16
	// GIDIndex is the GID table row of the source address, at most 255. Zero lets the provider or
	// QPConfig.GID choose. ExplicitZero means row 0.
	GIDIndex int
	// AckTimeout is the acknowledgement timeout as a code from 1 to 31; see the function AckTimeout.
	// Zero means DefaultTimeout. ExplicitZero disables the timeout.
	AckTimeout int8
	// RetryCount is the maximum number of retransmissions after timeouts, 1 to 7. Zero means
	// DefaultRetryCount. ExplicitZero disables retries.
	RetryCount int8
	// RNRRetry is the maximum number of retransmissions when the peer has no receive posted, 1 to
	// 7; 7 means unlimited. Zero means DefaultRNRRetry. ExplicitZero disables retries.
	RNRRetry int8
	// MinRNRTimer is the delay before the peer retries when this side has no receive posted, as a code
	// from 1 to 31 (RNRTimer). Zero means DefaultMinRNRTimer. ExplicitZero means code 0, 655 ms.
	MinRNRTimer int8
	// Seal makes the provider encrypt and authenticate the QP's packets. The peer's QP must have a Seal
	// with the same secret. It requires CapSeal. Nil means plain packets.
	Seal Seal
}

// Seal is a secret that two processes share for one session. Providers create Seals (softnic.NewSeal)
// and reject Seals from other providers.
type Seal interface {
	// Sealed marks the type as a Seal. It is a no-op.
	Sealed()
}

// KeyCounter is a Seal that closes its session after too many wrong keys. Software that checks the peer's keys above
// the NIC reports wrong ones; the NIC counts the keys it rejects.
type KeyCounter interface {
	Seal
	// WrongKey counts one wrong key from the peer.
	WrongKey()
}

// AnySeal as QPConfig.Path.Seal of a UD QP lets several peers share the QP: each datagram is sealed with the Seal
// of its AH. The QP accepts datagrams sealed with any Seal in use on its NIC, and rejects plain ones. WC.Seal
// identifies the Seal, which the receiver must compare with SealedAH.SealNumber before it trusts a datagram.
type AnySeal struct{}

// Sealed implements Seal.
func (AnySeal) Sealed() {}

// Check validates the path against its port and the requested GID. It returns the GID table row that the
// path selects, or -1 if it selects none. Errors wrap ErrInvalid.
func (p *PathConfig) Check(port *PortAttr, gid GID) (row int, err error) {
	if port == nil {
		return -1, Invalidf("the port is nil")
	}
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

// SGIDIndex returns the GID table row of a QP's source address: GIDIndex or, if that is zero, the row of
// gid. If several RoCE versions list the same GID, it prefers RoCE v2. A zero gid, for InfiniBand ports
// addressed by LID, returns row 0.
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

// Apply overwrites the attributes returned by ConnectAttr with the path's values.
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
