// Package cm is the connection manager behind an emulated /dev/infiniband/rdma_cm: the files, ids and events of one process,
// with the sequences, counts and limits of Linux's rdma_cm (drivers/infiniband/core/{ucma,cma,cm}.c).
//
// A [Manager] belongs to a process. A program opens a [File], creates ids on it, and consumes their
// events. The Manager reaches the managers of other processes through a [Link], which transports
// each [Message] in its own format. Package wire implements it with sockets, and the tests with
// queues. Package abi translates librdmacm's commands.
//
// All methods are safe for concurrent use. None blocks: a caller waits for a token of its File, then calls [File.Event].
// Errors are of type syscall.Errno, with the values of the kernel.
//
// The errno values and event sequences visible to programs are fixed by Linux. A change to [Message] needs a new version in
// package wire. Everything else may change freely.
package cm
