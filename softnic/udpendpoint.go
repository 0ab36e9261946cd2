package softnic

import (
	"encoding/binary"

	"ibverbx/internal/roce"
	"ibverbx/verbs"
)

// Endpoint.Extra of a QP on a UDPLink says that the peer is a softnic, and what its sender
// should know:
//
//	0     1     2     3     4     5     6     7
//	"s"   "n"   version flags  socket buffer, KiB
//
// Bit 0 of flags is set if datagrams that arrive as one are told apart. The UDP port, if it is
// not 4791, is the endpoint's LID, of which RoCE has no use: so it finds its way into every
// address vector.
const (
	extraLen     = 8
	extraVersion = 1
	extraRuns    = 1 << 0
)

// extra returns Endpoint.Extra of a port's QPs.
func (u *udpPort) extra() []byte {
	b := make([]byte, extraLen)
	b[0], b[1], b[2] = 's', 'n', extraVersion
	b[3] = extraRuns
	binary.BigEndian.PutUint32(b[4:], uint32(u.conn.Buffer()>>10))
	return b
}

// lid returns the LID of the port: its UDP port if that is not the usual one.
func (u *udpPort) lid() uint16 {
	if p := u.conn.Addr().Port(); p != roce.Port {
		return p
	}
	return 0
}

// learn remembers what a peer says of itself. Extra of other providers, and of versions to
// come, says nothing; then the LID, of which some drivers for Ethernet say 1, is no port.
func (u *udpPort) learn(e *verbs.Endpoint) {
	b := e.Extra
	if len(b) < 2 || b[0] != 's' || b[1] != 'n' {
		e.LID = 0
		return
	}
	if len(b) < extraLen || b[2] != extraVersion || len(u.peers) >= maxUDPPeers {
		return
	}
	port := e.LID
	if port == 0 {
		port = roce.Port
	}
	buffer := min(binary.BigEndian.Uint32(b[4:]), 1<<20) << 10
	u.peers[udpPeer{e.GID, port}] = udpTraits{runs: b[3]&extraRuns != 0, buffer: buffer}
}
