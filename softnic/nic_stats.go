package softnic

// Stats holds the counters of a NIC since its creation.
type Stats struct {
	PacketsSent     uint64
	PacketsReceived uint64
	// Direct counts WRITEs and READs that the NIC executed itself, directly in the memory of a peer
	// process (ShmLink, UDPConfig.SharedMemory).
	Direct uint64

	// Reliability.
	GoBacks         uint64 // go-backs of requesters, about one per lost packet
	Retransmits     uint64 // retransmitted packets: requests, including probes, and responses to repeated READs and atomics
	Timeouts        uint64 // expired ACK timers
	Probes          uint64 // packets retransmitted to solicit a response from a silent peer
	NAKsSent        uint64 // sequence and fatal NAKs
	RNRNAKsSent     uint64 // RNR NAKs
	Duplicates      uint64 // request packets received again
	OutOfOrder      uint64 // request packets received behind a gap
	MessagesDropped uint64 // UC and UD messages that could not be placed

	// WrongKeys counts peer requests rejected for an invalid key, range or access right.
	WrongKeys uint64
	// WritesBlocked counts UC packets dropped unchecked after too many invalid keys.
	WritesBlocked uint64

	// Seals counts packets dropped by seal checks.
	Seals SealStats

	// Packets dropped, by reason.
	UnknownQP     uint64
	NotReady      uint64 // the QP's state does not allow receiving
	WrongSource   uint64 // not from the QP's peer
	BadICRC       uint64 // corrupted
	BadQKey       uint64 // UD only
	BadPKey       uint64 // partition mismatch
	Malformed     uint64 // invalid length, version, opcode, pad or syndrome
	SendDrops     uint64 // rejected by the kernel
	Unroutable    uint64 // destination unknown
	PortDownDrops uint64 // the port is down

	CongestionNotices uint64 // CNPs received
	ReceiveErrors     uint64 // receive errors of the socket

	// EventsLost counts asynchronous events dropped because the queue was full.
	EventsLost uint64
}

// QPStats holds the error counters of one QP. The NIC's Stats include them.
type QPStats struct {
	GoBacks     uint64 // go-backs of the requester, about one per lost packet
	Retransmits uint64 // retransmitted packets: requests, including probes, and responses to repeated READs and atomics
	Timeouts    uint64 // expired ACK timers
	NAKsSent    uint64 // sequence and fatal NAKs
	RNRNAKsSent uint64 // RNR NAKs
}

// SealStats counts packets dropped by seal checks (docs/wire.md).
type SealStats struct {
	Bad      uint64 // forged or corrupted
	Replayed uint64 // received before
	Old      uint64 // older than the replay window, or sealed with an expired key
	Unknown  uint64 // session unknown to the NIC
	Wrong    uint64 // session or NIC differs from the QP's
	Plain    uint64 // unsealed, for a sealed QP
}
