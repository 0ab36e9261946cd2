// Package failover holds the tests of failover on a virtual clock: lanes killed at either side, rails cut,
// control messages lost, restarting peers, and deadlines.
package failover
