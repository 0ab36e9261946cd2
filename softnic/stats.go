package softnic

// Stats counts what a NIC did.
type Stats struct {
	PacketsSent     uint64
	PacketsReceived uint64

	// Reliability.
	Retransmits     uint64 // times that a requester went back
	Timeouts        uint64 // acknowledgement timers that fired
	Probes          uint64 // packets sent again to make a silent peer answer
	NAKsSent        uint64 // sequence and fatal ones
	RNRNAKsSent     uint64
	Duplicates      uint64 // requests received again
	OutOfOrder      uint64 // requests with a gap before them
	MessagesDropped uint64 // UC and UD messages that could not be placed

	// Packets dropped, by reason.
	UnknownQP     uint64
	NotReady      uint64 // the QP was not in a state to receive
	WrongSource   uint64 // not from the QP's peer
	BadICRC       uint64
	BadQKey       uint64
	BadPKey       uint64
	Malformed     uint64 // not a packet: length, version, opcode, pad or syndrome
	SendDrops     uint64 // refused by the kernel
	Unroutable    uint64
	PortDownDrops uint64

	CongestionNotices uint64 // CNPs received
	ReceiveErrors     uint64 // of the receiving socket

	// EventsLost counts asynchronous events that found their queue full.
	EventsLost uint64
}
