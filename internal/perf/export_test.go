package perf

import "time"

// Chatter makes an end say more often that it is still at it.
func (r *Remote) Chatter(every time.Duration) { r.chatter = every }
