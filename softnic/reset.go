package softnic

import "ibverbx/verbs"

// Recover ends a Fail, as a firmware reset that the driver has lived through does: the
// contexts that were open can be used again, with their PDs, regions, CQs and SRQs. Their
// QPs stay in the error state, to be taken to RESET or closed, and posted receives of SRQs
// stay posted. Contexts get EventPortActive if the port is up. A NIC that has not failed is
// left as it is.
func (n *NIC) Recover() {
	n.core.mu.Lock()
	defer n.core.mu.Unlock()
	if n.closed || !n.failed {
		return
	}
	n.failed = false
	if n.portUp {
		for _, x := range n.contexts.inOrder() {
			x.raise(verbs.Event{Type: verbs.EventPortActive, Port: 1})
		}
	}
	n.core.settle()
}

// Reset is Fail and Recover at once: whoever looks at the NIC afterwards finds its QPs in
// the error state, and the events of both.
func (n *NIC) Reset() {
	n.Fail()
	n.Recover()
}
