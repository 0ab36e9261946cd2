// Command ibverbx moves files between hosts by RDMA, and measures and inspects RDMA NICs. It needs
// neither RDMA hardware nor root: without them it uses softnic, an RDMA NIC in software.
//
//	ibverbx demo             pull a cable under load and watch the transfer continue
//	ibverbx serve PATH       serve files; on another host: ibverbx get HOST NAME
//	ibverbx put HOST PATH    copy a file or a directory to another host
//	ibverbx ls HOST          list the files that another host serves
//	ibverbx forward HOST     carry TCP connections to another host, as ssh -L does
//	ibverbx perf             measure the bandwidth of RDMA_WRITE, next to memcpy
//	ibverbx perf send --lat  measure the latency of SEND
//	ibverbx perf serve       wait for clients; on another host: ibverbx perf HOST
//	ibverbx compare A B      test whether results of perf --json differ significantly
//	ibverbx run -- PROGRAM   run any RDMA program on software NICs
//	ibverbx nccl -- PROGRAM  run PyTorch, or any NCCL program, over all NICs
//	ibverbx token FILE       create a secret for client and server
//	ibverbx cert             create certificates for them instead
//	ibverbx devices -v       list devices, ports, GIDs and limits
//	ibverbx doctor           report what this machine lacks for RDMA
//	ibverbx sim              check the engine in a simulated network
//	ibverbx version
//
// The function run (root.go) executes a command line, prints its error and returns the exit status. Each
// command is in the files that start with its name; serve, get, put and ls are in files_*.go.
//
// Scripts depend on commands, flags, exit statuses and JSON output (docs/commands.md): add to them, but
// do not rename them.
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
