// Package transport is the core of the NCCL network plugin, without C.
//
// A [Plugin] holds the NICs of a process and accepts its connections. A [Shard] holds the connections of one communicator: protection
// domains, VirtualCQs and the lock that guards them. A [Comm] is one direction of a connection between two ranks, on a VirtualQP over
// all rails, with failover, or over shared memory with a process of the same host.
//
// The receiver grants each receive to the sender with a SEND of its address, length and keys. The sender then posts a WRITE_WITH_IMM into
// that buffer, with the grant's sequence number as its immediate. The notification completes the receive.
//
// NCCL's threads drive a Shard: they post and poll under its lock. A goroutine polls Shards that no thread has polled for 10 ms, because
// failover needs both ends to poll. Requests complete in [Words], which C reads without calling Go.
package transport
