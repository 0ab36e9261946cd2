// Package failover holds the tests of failover: lanes killed at either side, rails cut, control messages lost,
// restarting peers, and deadlines. Most run on a virtual clock; tests over UDP and shared memory do not.
package failover
