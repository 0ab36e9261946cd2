package rdmacore

import (
	"fmt"

	"ibverbx/verbs"
)

// GIDChoice is the selected source GID of a port, and the reason.
type GIDChoice struct {
	// Entry is the row of the GID table.
	Entry verbs.GIDEntry
	// Why is the reason for the choice, as a short phrase.
	Why string
}

// rank orders rows as sources. The higher value wins, among equal values the lower index.
type rank struct {
	value  int
	reason string
}

// Ranks on Ethernet, best first. RoCE v2 is routable and usually enabled throughout a cluster.
// Administrators configure IPv4-mapped addresses. A link-local address reaches only its own
// segment, and the peer may be in another one.
var (
	rankV2IPv4      = rank{8, "RoCE v2 over a routable IPv4 address"}
	rankV2IPv6      = rank{7, "RoCE v2 over a routable IPv6 address"}
	rankV1IPv4      = rank{5, "RoCE v1 with an IPv4 address: the port has no routable RoCE v2 row"}
	rankV1IPv6      = rank{4, "RoCE v1 with an IPv6 address: the port has no routable RoCE v2 row"}
	rankV2LinkLocal = rank{3, "RoCE v2 over a link-local address, because the port has no other"}
	rankV1LinkLocal = rank{2, "RoCE v1 with a link-local address, because the port has no other"}
	rankOther       = rank{1, "the only kind of address that the port has"}
	rankIB          = rank{9, "the port GID of an InfiniBand port"}
)

// ChooseGID selects the source address of a port from the non-empty rows of its GID table. A non-zero
// wanted GID is used as is, in its RoCE v2 row if it has several. Otherwise routable RoCE v2 rows are
// preferred, IPv4-mapped before IPv6, and link-local rows are the last choice.
func ChooseGID(link verbs.LinkLayer, rows []verbs.GIDEntry, wanted verbs.GID) (GIDChoice, error) {
	var (
		best  GIDChoice
		found rank
	)
	for _, row := range rows {
		if row.GID.IsZero() || !wanted.IsZero() && row.GID != wanted {
			continue
		}
		r := rankOf(link, row)
		if r.value > found.value || r.value == found.value && row.Index < best.Entry.Index {
			found, best = r, GIDChoice{Entry: row, Why: r.reason}
		}
	}
	switch {
	case found.value == 0 && !wanted.IsZero():
		return best, verbs.Invalidf("GID %s is not in the table of the port", wanted)
	case found.value == 0:
		return best, fmt.Errorf("%w: the GID table is empty: assign an address to the port's network interface and bring it up", verbs.ErrNotFound)
	case !wanted.IsZero():
		best.Why = "asked for"
	}
	return best, nil
}

func rankOf(link verbs.LinkLayer, row verbs.GIDEntry) rank {
	if link != verbs.LinkLayerEthernet {
		return rankIB
	}
	addr := row.GID.Addr()
	local := addr.IsLinkLocalUnicast() || addr.IsLoopback()
	switch row.Type {
	case verbs.GIDTypeRoCEv2:
		switch {
		case local:
			return rankV2LinkLocal
		case addr.Is4():
			return rankV2IPv4
		}
		return rankV2IPv6
	case verbs.GIDTypeRoCEv1:
		switch {
		case local:
			return rankV1LinkLocal
		case addr.Is4():
			return rankV1IPv4
		}
		return rankV1IPv6
	case verbs.GIDTypeIB:
	}
	return rankOther
}
