package peer

import (
	"cmp"
	"fmt"
	"strings"

	"ibverbx"
	"ibverbx/internal/printable"
	"ibverbx/verbs"
)

// Link is the type of link between two sides with software NICs.
type Link string

// Link types.
const (
	// LinkAuto uses shared memory between two processes of one user on one host, otherwise the configured NICs.
	// Session.LinkReason explains why shared memory is not used.
	LinkAuto Link = "auto"
	// LinkShm requires shared memory (softnic.ShmLink). If that is impossible, connecting fails with a MismatchError or the cause. With
	// Config.SharedCQ, the rails remain: they execute WRITEs and READs in the peer's memory (softnic.Introduce), and send the rest as
	// packets.
	LinkShm Link = "shm"
	// LinkUDP uses the configured NICs.
	LinkUDP Link = "udp"
)

// OfferLink is the part of an Offer about shared memory. The dialer offers a socket and a nonce. A listener that has reached the socket
// responds with another nonce. Each side proves over the socket that it knows the other's nonce. Both nonces were sent over the
// authenticated connection, so both ends of the socket belong to the processes at the ends of the connection.
type OfferLink struct {
	// Want is the side's preference. Empty means LinkUDP.
	Want Link `json:"want,omitempty"`
	// Nonce is random, and empty if the side cannot use shared memory. The dialer's also determines the socket's name.
	Nonce string `json:"nonce,omitempty"`
	// Links is the number of shared-memory links started by the listener: one per rail, or 0.
	Links int `json:"links,omitempty"`
	// Beside is set if the rails remain beside shared memory (Config.SharedCQ). It must be equal on both sides.
	Beside bool `json:"beside,omitempty"`
	// Why explains an empty Nonce.
	Why string `json:"why,omitempty"`
}

const (
	nonceLen = 26 // crypto/rand.Text
	maxWhy   = 256
)

func (o *OfferLink) validate() error {
	switch {
	case o.Want != "" && o.Want != LinkAuto && o.Want != LinkShm && o.Want != LinkUDP:
		return verbs.Invalidf("link %.64q: want auto, shm or udp", o.Want)
	case o.Nonce != "" && (len(o.Nonce) != nonceLen || strings.Trim(o.Nonce, "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567") != ""):
		return verbs.Invalidf("link: the nonce has %d bytes, want %d of base32", len(o.Nonce), nonceLen)
	case o.Links < 0 || o.Links > ibverbx.MaxRails || (o.Links > 0 && o.Nonce == ""):
		return verbs.Invalidf("link: %d links of shared memory", o.Links)
	case len(o.Why) > maxWhy:
		return verbs.Invalidf("link: a reason of %d bytes, want at most %d", len(o.Why), maxWhy)
	}
	return nil
}

// agreeLink returns an error if the sides' preferences or capabilities conflict.
func agreeLink(dialer, listener *OfferLink) error {
	if listener.Links > 0 && dialer.Beside == listener.Beside || dialer.Want != LinkShm && listener.Want != LinkShm && listener.Links == 0 {
		return nil
	}
	text := func(o *OfferLink) string {
		if o.Why == "" || o.want() == LinkUDP {
			return fmt.Sprintf("wants %s", o.want())
		}
		return fmt.Sprintf("wants %s (%s)", o.want(), printable.Text(o.Why))
	}
	return &MismatchError{What: "link", Dialer: text(dialer), Listener: text(listener)}
}

func (o *OfferLink) want() Link { return cmp.Or(o.Want, LinkUDP) }

// refusal returns the reason why the peer cannot use shared memory.
func (o *OfferLink) refusal() error {
	return fmt.Errorf("the peer: %s", cmp.Or(printable.Text(o.Why), "no shared memory"))
}
