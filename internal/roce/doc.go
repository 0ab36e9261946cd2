// Package roce implements the wire format of RoCEv2: the InfiniBand transport headers in a UDP datagram
// to port 4791 (IBTA volume 1, chapter 9 and annex A17).
//
//	IPv4 or IPv6 | UDP | BTH | extended headers | payload | pad | ICRC
//	                   |<------------- the datagram ---------------->|
//
// The kernel writes the headers before the BTH. This package calls the rest a datagram, ICRC included.
// The length of a datagram is a multiple of four.
//
// To send, [Header.Encode] writes the headers, the payload follows, and the ICRC ends the datagram.
// [Flow.Seal] writes the ICRC of a datagram in one piece; [Flow.Begin], [Sum.Add] and [Sum.Finish] do
// so for a payload in several pieces. To receive, [Header.Decode] reads the headers or returns the
// reason for a refusal, and [Flow.Check] compares the ICRC. Nothing here allocates, and only
// [Explainer] holds state.
package roce
