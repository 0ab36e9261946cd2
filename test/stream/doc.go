// Package stream tests package stream with third-party software for net.Conn: nettest, net/http and gRPC. It
// is a separate module, so that programs that use ibverbx do not depend on gRPC. make test-stream runs it.
package stream
