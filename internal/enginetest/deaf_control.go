package enginetest

// Deaf is an ibverbx.Control that drops every datagram. With it, a single lane keeps a ring and a
// ledger of its requests, and a lost lane stays lost. Any number of VirtualQPs may share one.
type Deaf struct{}

// Send implements ibverbx.Control.
func (Deaf) Send([]byte) error { return nil }

// Recv implements ibverbx.Control.
func (Deaf) Recv([]byte) (int, error) { return 0, nil }

// Notify implements ibverbx.Control.
func (Deaf) Notify(func()) {}
