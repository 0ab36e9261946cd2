package forward

import "time"

// SetPlaces makes the Server have so many connections at a time. It is called before the first one.
func (s *Server) SetPlaces(n int) { s.shares.total = n }

// SetPatience makes the next connection wait for so long until this one has reached its target.
func (c *Client) SetPatience(d time.Duration) { c.patience = d }
