// Command ibverbx measures and inspects RDMA NICs. It needs neither RDMA hardware nor
// root: without them it uses softnic, an RDMA NIC in software.
//
//	ibverbx perf             bandwidth of RDMA_WRITE, next to that of memcpy
//	ibverbx perf send --lat  latency of SEND
//	ibverbx perf --server    wait for clients, and on another host: ibverbx perf HOST
//	ibverbx cert             certificates for the two
//	ibverbx devices -v       devices, ports, GIDs and limits
//	ibverbx version
//
// The exit status is 0 if all went well, 1 if something failed, 2 if the command line
// is wrong, and 130 if Ctrl-C ended a measurement; what was measured is printed then.
package main

import (
	"context"
	"os"
	"os/signal"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	// A second Ctrl-C finds the default behaviour: it ends the process at once.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], streams{in: os.Stdin, out: os.Stdout, err: os.Stderr}))
}
