package node

import "time"

// SetPauses makes a Node redial only on demand, at most once per least.
func (n *Node) SetPauses(least time.Duration) {
	n.backoff = backoff{least: least, first: time.Hour, most: time.Hour, health: time.Hour}
}

// Lose closes the connection of a Peer's session.
func (p *Peer) Lose() { lose(p) }
