package softnic

import "ibverbx/verbs"

// SetLoose makes the gates of a link open after need calls: 0 opens them immediately, every time.
func SetLoose(l *MemoryLink, need uint32) { l.mu.openAfter, l.mu.minOpenAfter = need, need }

// NeverLoose keeps the gates of a link shut.
const NeverLoose = neverOpen

// PostTurn posts a request to several QPs of a NIC and runs a turn of each, without releasing the lock.
func PostTurn(qps []verbs.QP, wrs []verbs.SendWR) error {
	c := qps[0].(*qp).core
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, v := range qps {
		q := v.(*qp)
		if _, err := q.postLocked(wrs[i:i+1], 0); err != nil {
			return err
		}
		c.lists.tx.push(q)
	}
	c.settle()
	return nil
}

// PartNeighbors closes a NIC's connections to its neighbors, which keep running.
func PartNeighbors(n *NIC) {
	n.core.mu.Lock()
	defer n.core.mu.Unlock()
	for _, b := range n.core.neighbors {
		_ = b.conn.Close()
	}
}

// ReachesProcess reports whether the kernel can copy between the link's process and the peer.
func ReachesProcess(l *ShmLink) bool { return l.peer.process != nil }
