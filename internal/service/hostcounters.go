package service

import "net"

// ByHost holds counters by the host of the peers' addresses, at most maxHosts. Further hosts are counted under otherHost. Entries are never
// removed, so that sums never decrease.
type ByHost[T any] map[string]*T

const (
	maxHosts  = 256
	otherHost = "other"
)

// Of returns the key and the counters of an address's host. addr may be nil.
func (m ByHost[T]) Of(addr net.Addr) (host string, counters *T) {
	if addr != nil {
		host = addr.String()
		if h, _, err := net.SplitHostPort(host); err == nil {
			host = h
		}
	}
	if m[host] == nil && len(m) >= maxHosts {
		host = otherHost
	}
	if m[host] == nil {
		m[host] = new(T)
	}
	return host, m[host]
}
