// Package roce implements the wire format of RoCEv2: the InfiniBand transport headers in a UDP datagram
// to port 4791 (IBTA volume 1, chapter 9 and annex A17).
//
//	IPv4 or IPv6 | UDP | BTH | extended headers | payload | pad | ICRC
//	                   |<------------- the datagram ---------------->|
//
// The kernel writes the headers before the BTH. This package calls the rest a datagram, ICRC included.
// The length of a datagram is a multiple of four.
//
// To send, [Header.Encode] writes the headers, then the payload and the ICRC follow. [Flow.Seal]
// writes the ICRC of a contiguous datagram; [Flow.Begin], [Sum.Add] and [Sum.Finish] compute it
// over several parts. To receive, [Header.Decode] reads the headers or returns the reason for a
// rejection, and [Flow.Check] verifies the ICRC. The package never allocates per packet, and only
// [Explainer] holds state.
package roce
