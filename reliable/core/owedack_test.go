package core

import (
	"testing"

	"ibverbx/reliable/wire"
)

// TestOwedAckLeaves: a chunk that does not request an acknowledgement is acknowledged at the end of its
// batch. Until then the connection owes the ACK, and EvFlush is mandatory.
func TestOwedAckLeaves(t *testing.T) {
	c := newConn(t, modest())
	if c.Owes() {
		t.Errorf("Owes before anything has arrived, want none")
	}
	if n := acksIn(c.Step(1, &Event{Kind: EvData, Imm: wire.Imm{Kind: wire.KindData}, Count: 16})); n != 0 || !c.Owes() {
		t.Errorf("after a chunk: %d acknowledgements, Owes %v, want none, true", n, c.Owes())
	}
	if n := acksIn(c.Step(1, &Event{Kind: EvFlush})); n != 1 || c.Owes() {
		t.Errorf("after EvFlush: %d acknowledgements, Owes %v, want one, false", n, c.Owes())
	}
}

// acksIn counts the acknowledgements that the owner is to send.
func acksIn(actions []Action) (n int) {
	for i := range actions {
		if actions[i].Kind == ActControl && actions[i].Record.Type == wire.Ack {
			n++
		}
	}
	return n
}
