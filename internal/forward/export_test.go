package forward

import "time"

// SetPlaces limits the Server to n concurrent connections. It must be called before the first one.
func (s *Server) SetPlaces(n int) { s.shares.total = n }

// SetPatience sets the wait for a connection to reach its target before the next is accepted.
func (c *Client) SetPatience(d time.Duration) { c.patience = d }
