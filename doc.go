// Package ibverbx makes many RDMA queue pairs, on several NICs, behave like one.
//
// The package will hold VirtualQP and VirtualCQ, the engine that cuts a request into
// fragments, spreads them over its lanes and reports one completion per request, in
// posting order. What stands today is what they are built on: the seam in package
// verbs, and softnic, an RDMA NIC in pure Go. docs/architecture.md shows the house.
package ibverbx
