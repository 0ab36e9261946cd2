// Package stream tests package stream with software that others wrote for every net.Conn: nettest, net/http and gRPC. It is a module
// of its own, so that programs that use ibverbx do not depend on gRPC. make test-stream runs it.
package stream
