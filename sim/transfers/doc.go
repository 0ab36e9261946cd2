// Package transfers runs worlds of packages transfer and stream: hosts transfer blocks, notify each other and exchange
// bytes over streams, while rails lose packets, queue pairs and NICs fail, and processes are killed and restarted.
//
// A seed determines the world and its faults. Time is real, so a seed reproduces the plan of a world, but
// not its interleaving.
//
// # Checks
//
//	bytes           announced data is in memory when its notification is consumed, byte by byte; so is the result of a Get
//	notifications   each arrives at most once and in the order of Submit; if its batch succeeded, it arrives
//	errors          a transfer fails only for a reason that the world has: a cancel, or a killed process
//	streams         the received bytes are those that were sent; the end of a stream means that all have arrived; it fails only if a
//	                session can be lost: a connection is cut, a process or a NIC fails, or no rail is without faults
//	progress        when the faults are over, everything completes
//
// # Changes
//
// [NewPlan] draws a plan from a seed; [Run] executes it and returns the first failed check. Checks may only
// get stricter; everything else may change freely.
package transfers
