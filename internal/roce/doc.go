// Package roce is the wire format of RoCEv2: the InfiniBand transport headers in a UDP
// datagram to port 4791 (IBTA volume 1, chapter 9 and annex A17).
//
//	IPv4 or IPv6 | UDP | BTH | extended headers | payload | pad | ICRC
//	                   |<------------- the datagram ---------------->|
//
// What is before the BTH is the kernel's; what this package calls a datagram is the rest,
// the ICRC included. The length of a datagram is a multiple of four.
//
// To send, [Header.Encode] writes the headers, the payload follows, and the ICRC closes the
// datagram: [Flow.Seal] does so for a datagram that lies in one piece, and [Flow.Begin],
// [Sum.Add] and [Sum.Finish] for one whose payload is in several. To receive,
// [Header.Decode] reads the headers and says why a datagram is not one, and [Flow.Check]
// compares the ICRC. Nothing here allocates, and nothing but [Explainer] holds state.
package roce
