// Package seal encrypts and authenticates packets between two NICs. docs/wire.md fixes the format and the
// key schedule, with test vectors; a change needs a new version.
//
// Two processes that share a secret create a [Session] each. Every NIC has a [Greeting] for a
// session, which it sends to its peers in the clear. Two greetings form an [Association]: the keys
// of both directions between two NICs. [Association.Seal] encrypts a packet in place. At the receiver,
// [Index] identifies the Association, and [Association.Open] verifies and decrypts the packet. This
// package never reads a clock, starts a goroutine or allocates per packet. An Association is not safe
// for concurrent use.
package seal
