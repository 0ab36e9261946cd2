// Package transport is the core of the NCCL network plugin, without C.
//
// A [Plugin] holds the NICs of a process and accepts its connections. A [Shard] holds the connections of one communicator. It consists of
// parts with separate locks, protection domains and VirtualCQs. A [Comm] is one direction of a connection between two ranks, on a
// VirtualQP over all rails, with failover, or over shared memory with a process of the same host.
//
// A request enters in [Comm.Send] or [Comm.Recv] and completes in Comm.completed, which updates the [Words]: C reads them without calling
// Go.
//
// The receiver grants each receive to the sender with a SEND of its address, length and keys. The sender then posts a WRITE_WITH_IMM into
// that buffer, with the grant's sequence number as its immediate. The notification completes the receive.
//
// A worker is a goroutine that drives a part while there is traffic; workers exist only with several sets of software NICs (Options.Parts).
// Otherwise NCCL's threads post and poll under the lock of the part. Another goroutine polls parts that have not been polled for 10 ms,
// because failover needs both ends to poll.
//
// The handle (handle.go), the greeting (shared_memory.go) and the grants (comm.go) are fixed, because the other rank may run another build: a
// change needs a new handleVersion. Everything else may change freely.
package transport
