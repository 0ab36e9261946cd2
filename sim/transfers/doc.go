// Package transfers runs worlds of package transfer: hosts that put blocks into each other's memory, read from it, verify, cancel and
// notify, while rails lose packets, cables are pulled, queue pairs and NICs fail, and processes are killed and started again.
//
// A seed decides the world and its faults. Time is real, because nodes have goroutines and connections of their own. So a
// seed repeats the plan of a world and not its interleaving.
//
// # What is checked
//
//	bytes           what a notification announces is in memory when it is taken, byte by byte; so is what a Get has read
//	notifications   each arrives at most once and in the order of Submit; if its batch succeeded, it arrives
//	errors          a transfer fails only for a reason that the world has: a cancel, or a process that was killed
//	progress        when the faults are over, everything ends
package transfers
