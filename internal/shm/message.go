package shm

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
)

// Kind is the kind of a message.
type Kind uint8

const (
	// Hello is the first message of each side. Its file is the segment.
	Hello Kind = 1 + iota
	// ShareFile shares a region with its file, which the peer maps.
	ShareFile
	// ShareAddress shares a region without a file. The kernel copies its bytes.
	ShareAddress
	// Revoke makes the peer forget a region and unmap its file.
	Revoke
	// ShareDevice shares a region in device memory, with a handle that the peer's device can open.
	ShareDevice
	// RequestRegion requests the region with a key, from a peer that shares regions on request.
	RequestRegion
	// ReadRing makes the peer read its ring.
	ReadRing
)

// MaxHandle is the maximum length of a handle in bytes.
const MaxHandle = messageLen - 33

// Message is a message on the socket. All have the same length:
//
//	0 "ibvx" | 4 version | 5 kind | 6 access 2 | 8 key 4 | 12 domain 4 | 16 address 8 | 24 size 8 | 32 length of the handle | 33 handle
type Message struct {
	Kind Kind
	// Access is the access granted to the peer.
	Access uint16
	// Key and Domain identify the region. In a Hello of a ShmLink, whose sockets may be a pair, Key
	// is the process ID.
	Key, Domain uint32
	// Addr is the address of the region. In a Hello it is a random number.
	Addr uint64
	// Size is the number of bytes of the file, or of the memory on a device.
	Size uint64
	// Handle is for the peer's device: 1 to MaxHandle bytes in a ShareDevice, otherwise empty.
	Handle string
}

const (
	messageLen = 128
	version    = 3
	magic      = "ibvx"
)

// Conn carries messages and descriptors between two processes of one user.
type Conn struct {
	*net.UnixConn
	// Peer is the ID, in this PID namespace, of the process that called connect(2) or listen(2) on
	// the other end. It is 0 if that process is not visible here. For a socket pair it is the process
	// that created both.
	Peer uint32
}

func (m Message) encode() (b [messageLen]byte) {
	copy(b[:], magic)
	b[4], b[5] = version, byte(m.Kind)
	binary.LittleEndian.PutUint16(b[6:], m.Access)
	binary.LittleEndian.PutUint32(b[8:], m.Key)
	binary.LittleEndian.PutUint32(b[12:], m.Domain)
	binary.LittleEndian.PutUint64(b[16:], m.Addr)
	binary.LittleEndian.PutUint64(b[24:], m.Size)
	b[32] = byte(copy(b[33:], m.Handle))
	return b
}

func decode(b []byte) (m Message, err error) {
	switch {
	case len(b) < 5 || string(b[:4]) != magic || (b[4] == version && len(b) != messageLen):
		return m, fmt.Errorf("the peer sent %q, which is not a message of a shared-memory link", b)
	case b[4] != version: // its messages may have another length
		return m, fmt.Errorf("the peer has version %d of the shared-memory link, this side %d", b[4], version)
	case b[5] < byte(Hello) || b[5] > byte(ReadRing):
		return m, fmt.Errorf("the peer sent a message of unknown kind %d", b[5])
	case b[32] > MaxHandle || (b[32] > 0) != (Kind(b[5]) == ShareDevice) || len(bytes.TrimRight(b[33+int(b[32]):], "\x00")) > 0:
		return m, fmt.Errorf("the peer sent message %d with a handle of %d bytes", b[5], b[32])
	}
	return Message{
		Kind: Kind(b[5]), Access: binary.LittleEndian.Uint16(b[6:]), Key: binary.LittleEndian.Uint32(b[8:]),
		Domain: binary.LittleEndian.Uint32(b[12:]), Addr: binary.LittleEndian.Uint64(b[16:]), Size: binary.LittleEndian.Uint64(b[24:]),
		Handle: string(b[33:][:b[32]]),
	}, nil
}
