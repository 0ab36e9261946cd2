// Command ibverbx moves files between hosts by RDMA, and measures and inspects RDMA NICs. It needs
// neither RDMA hardware nor root: without them it uses softnic, an RDMA NIC in software.
//
//	ibverbx demo             pull a cable under load and watch the transfer go on
//	ibverbx serve PATH       let other hosts get files, and on another host: ibverbx get HOST NAME
//	ibverbx put HOST PATH    give a file or a directory to another host
//	ibverbx ls HOST          list what another host serves
//	ibverbx forward HOST     carry TCP connections to another host, as ssh -L does
//	ibverbx perf             bandwidth of RDMA_WRITE, next to that of memcpy
//	ibverbx perf send --lat  latency of SEND
//	ibverbx perf serve       wait for clients, and on another host: ibverbx perf HOST
//	ibverbx compare A B      differences of results of perf --json, and if they are chance
//	ibverbx run -- PROGRAM   run any RDMA program on software NICs
//	ibverbx token FILE       make a secret for client and server
//	ibverbx cert             make certificates for them instead
//	ibverbx devices -v       devices, ports, GIDs and limits
//	ibverbx doctor           what this machine lacks for RDMA
//	ibverbx sim              check the engine in a simulated network
//	ibverbx version
//
// The exit status is 0 on success, 1 on failure, 2 if the command line is invalid, and 130 or 143 if Ctrl-C or SIGTERM
// stopped unfinished work. docs/commands.md lists all statuses.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// A second signal kills the process.
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], streams{in: os.Stdin, out: os.Stdout, err: os.Stderr}))
}
