package softnic

// Stats are the counters of a NIC.
type Stats struct {
	PacketsSent     uint64
	PacketsReceived uint64
	// Direct counts WRITEs and READs that the NIC has done itself, on the memory of the peer of a
	// ShmLink.
	Direct uint64

	// Reliability.
	Retransmits     uint64 // how often a requester went back
	Timeouts        uint64 // acknowledgement timers that fired
	Probes          uint64 // packets sent again to make a silent peer answer
	NAKsSent        uint64 // sequence and fatal NAKs
	RNRNAKsSent     uint64
	Duplicates      uint64 // requests received again
	OutOfOrder      uint64 // requests received behind a gap
	MessagesDropped uint64 // UC and UD messages that could not be placed

	// WrongKeys counts requests of peers whose key, range or access right was wrong.
	WrongKeys uint64
	// WritesBlocked counts UC packets that were dropped unseen, because too many keys were wrong just before.
	WritesBlocked uint64

	// Seals counts packets that were dropped because of seals.
	Seals SealStats

	// Packets dropped, by reason.
	UnknownQP     uint64
	NotReady      uint64 // the state of the QP does not allow receiving
	WrongSource   uint64 // not from the QP's peer
	BadICRC       uint64
	BadQKey       uint64
	BadPKey       uint64
	Malformed     uint64 // not a packet: length, version, opcode, pad or syndrome
	SendDrops     uint64 // refused by the kernel
	Unroutable    uint64
	PortDownDrops uint64

	CongestionNotices uint64 // CNPs received
	ReceiveErrors     uint64 // errors of the receiving socket

	// EventsLost counts asynchronous events that found their queue full.
	EventsLost uint64
}

// QPStats counts what went wrong on one QP. All of it is in the Stats of the NIC, too.
type QPStats struct {
	Retransmits uint64 // how often the requester went back
	Timeouts    uint64 // acknowledgement timers that fired
	NAKsSent    uint64 // sequence and fatal NAKs
	RNRNAKsSent uint64
}

// SealStats counts packets that were dropped because of seals (docs/wire.md).
type SealStats struct {
	Bad      uint64 // forged or damaged
	Replayed uint64 // came before
	Old      uint64 // older than the replay window, or under a key whose time is over
	Unknown  uint64 // of no session that the NIC has
	Wrong    uint64 // of another session or NIC than the QP's
	Plain    uint64 // not sealed, for a sealed QP
}
