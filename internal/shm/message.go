package shm

import (
	"encoding/binary"
	"fmt"
	"net"
)

// Kind is the kind of a message.
type Kind uint8

const (
	// Hello is the first message of each side. Its file is the segment.
	Hello Kind = 1 + iota
	// Lend gives the peer the file of a region.
	Lend
	// Name tells the peer of a region without a file.
	Name
	// Recall asks the peer to forget a region and to unmap its file.
	Recall
)

// Message is a message on the socket. All have the same length:
//
//	0 "ibvx" | 4 version | 5 kind | 6 access 2 | 8 key 4 | 12 domain 4 | 16 address 8 | 24 size 8
type Message struct {
	Kind Kind
	// Access is what the peer may do with the region.
	Access uint16
	// Key and Domain name the region. In a Hello of a ShmLink, whose sockets may be a pair, Key is the number of the process.
	Key, Domain uint32
	// Addr is where the region is. In a Hello it is a random number.
	Addr uint64
	// Size is the number of bytes of the file.
	Size uint64
}

const (
	messageLen = 32
	version    = 1
	magic      = "ibvx"
)

// Conn carries messages and descriptors between two processes of one user.
type Conn struct {
	*net.UnixConn
	// Peer is the number of the process at the other end when the sockets were connected, as the kernel knows it in this namespace. It is 0 if
	// the process is not visible here. For a pair of sockets it is the process that made both.
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
	return b
}

func decode(b []byte) (m Message, err error) {
	switch {
	case len(b) != messageLen || string(b[:4]) != magic:
		return m, fmt.Errorf("the peer sent %q, which is no message of a shared-memory link", b)
	case b[4] != version:
		return m, fmt.Errorf("the peer has version %d of the shared-memory link, this side %d", b[4], version)
	case b[5] < byte(Hello) || b[5] > byte(Recall):
		return m, fmt.Errorf("the peer sent message %d, which does not exist", b[5])
	}
	return Message{
		Kind: Kind(b[5]), Access: binary.LittleEndian.Uint16(b[6:]), Key: binary.LittleEndian.Uint32(b[8:]),
		Domain: binary.LittleEndian.Uint32(b[12:]), Addr: binary.LittleEndian.Uint64(b[16:]), Size: binary.LittleEndian.Uint64(b[24:]),
	}, nil
}
