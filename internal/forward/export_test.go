package forward

import "time"

// SetPatience makes the next connection wait for so long until this one has reached its target.
func (c *Client) SetPatience(d time.Duration) { c.patience = d }
