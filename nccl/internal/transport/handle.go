package transport

import (
	"bytes"
	"encoding/binary"
	"net/netip"

	"ibverbx/verbs"
)

// HandleSize is the size of an NCCL handle in bytes.
const HandleSize = 128

// handle holds the address and the secrets of a listener. NCCL carries it over its own connection:
//
//	0       4         5           6      8              24            56               120     128
//	| magic | version | addresses | port | connection   | key         | addresses ...  | state |
//
// Numbers are little-endian. The state belongs to the connector.
type handle struct {
	port  uint16
	conn  connID
	key   [32]byte
	addrs []netip.Addr
}

// connID identifies a listening Comm within its process. It is random.
type connID [16]byte

const (
	handleMagic   = "ibxN"
	handleVersion = 3
	handleState   = HandleSize - 8
	maxAddrs      = 4
)

// encode writes the handle into b, of HandleSize bytes. It has at most maxAddrs addresses.
func (h *handle) encode(b []byte) {
	clear(b)
	copy(b, handleMagic)
	b[4], b[5] = handleVersion, byte(len(h.addrs))
	binary.LittleEndian.PutUint16(b[6:], h.port)
	copy(b[8:24], h.conn[:])
	copy(b[24:56], h.key[:])
	for i, a := range h.addrs {
		raw := a.As16()
		copy(b[56+16*i:], raw[:])
	}
}

// decodeHandle reads a handle. It returns verbs.ErrInvalid if b is not one.
func decodeHandle(b []byte) (h handle, err error) {
	if len(b) != HandleSize || !bytes.HasPrefix(b, []byte(handleMagic)) || b[4] != handleVersion || b[5] < 1 || b[5] > maxAddrs {
		return h, verbs.Invalidf("the handle is not from a listener of this version of ibverbx")
	}
	h.port = binary.LittleEndian.Uint16(b[6:])
	copy(h.conn[:], b[8:24])
	copy(h.key[:], b[24:56])
	for i := range int(b[5]) {
		h.addrs = append(h.addrs, netip.AddrFrom16([16]byte(b[56+16*i:])).Unmap())
	}
	return h, nil
}
