package transcript_test

import (
	"os"
	"testing"

	"ibverbx/internal/rig"
	"ibverbx/rdmacore"
	"ibverbx/verbs"
)

// TestTranscriptsRXE plays the transcripts on the kernel's Soft-RoCE, two devices for each
// rail. What a lane is given waits until the transcript says how it ends, and then is done
// for real: a request that completes goes to a peer on the other device and its bytes are
// compared there, one that fails has a key that the peer does not know or a peer that is
// gone, a message that comes is sent by the peer. Completions, their order and what is in
// them are the device's. The answers must be those in the file.
//
// One thing is not the device's doing: no real one can be made to refuse a chain at a place
// that a transcript names, so the refusal comes from the test, between engine and device.
func TestTranscriptsRXE(t *testing.T) {
	if os.Getenv("IBVERBX_RXE") != "1" {
		t.Skip("needs the Soft-RoCE devices of test/rxe (IBVERBX_RXE=1)")
	}
	m := openMachine(t)
	transcripts(t, m.stage, false)
}

// machine is the Soft-RoCE devices, by name, each open.
type machine map[string]verbs.Context

func openMachine(t *testing.T) machine {
	lib, err := rdmacore.Load(rdmacore.Config{})
	rig.Must(t, err)
	t.Cleanup(func() { rig.Must(t, lib.Close()) })
	devices, err := lib.Devices()
	rig.Must(t, err)
	m := machine{}
	for _, d := range devices {
		ctx, err := d.Open()
		rig.Must(t, err)
		t.Cleanup(func() { rig.Must(t, ctx.Close()) })
		m[d.Name()] = ctx
	}
	for _, name := range []string{"rxe0", "rxe1", "rxe2", "rxe3"} {
		if m[name] == nil {
			t.Fatalf("there is no device %s, want two pairs (test/rxe/run --pairs 2)", name)
		}
	}
	return m
}
