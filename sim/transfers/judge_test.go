package transfers

import (
	"context"
	"errors"
	"testing"

	"ibverbx/peer"
	"ibverbx/transfer"
)

// TestJudge: errors of restarted processes end a world that has no restart.
func TestJudge(t *testing.T) {
	for _, err := range []error{transfer.ErrRestarted, transfer.ErrRevoked, transfer.ErrNotFound} {
		for _, kind := range []FaultKind{Disconnect, Restart} {
			w := &world{plan: &Plan{Rails: 1, Faults: []Fault{{Kind: kind}}}}
			w.ctx, w.fail = context.WithCancelCause(t.Context())
			s := &sender{process: &process{host: &host{world: w}, ctx: w.ctx}}
			s.judge(err)
			if failed := errors.Is(context.Cause(w.ctx), err); failed != (kind == Disconnect) {
				t.Errorf("%v in a world with a %v: the world has failed: %t", err, kind, failed)
			}
			w.fail(nil)
		}
	}
}

// TestLaneFailure: a lane fails even if the fault is due before the first session.
func TestLaneFailure(t *testing.T) {
	plan := &Plan{
		Seed: 1, Hosts: 2, Rails: 2, Batches: 40, Fabric: peer.Fabric{Unsealed: true, Transport: peer.TransportRC},
		Faults: []Fault{{Kind: LaneFailure, Rail: 1}},
	}
	sum, err := Run(t.Context(), plan)
	if err != nil || sum.Faults[LaneFailure] != 1 {
		t.Errorf("Run = %v, %v, want one lane failure", sum, err)
	}
}
