package transcript_test

import (
	"os"
	"testing"

	"ibverbx/internal/enginetest"
	"ibverbx/rdmacore"
	"ibverbx/verbs"
)

// TestTranscriptsRXE plays the transcripts on the kernel's Soft-RoCE, two devices per rail. A lane's requests
// are held until the transcript decides their outcome, which is then produced for real. A completing request
// is sent to a peer on the other device, where its bytes are compared. A failing one uses an invalid key or a
// dead peer. An incoming message is sent by the peer. Completions, with their order and contents, are the
// device's own. The output must match the file.
//
// Only refusals are simulated. A real device cannot be made to refuse a chain at a given position, so the
// test refuses it between engine and device.
func TestTranscriptsRXE(t *testing.T) {
	if os.Getenv("IBVERBX_TEST_RXE") != "1" {
		t.Skip("needs the Soft-RoCE devices of test/rxe (IBVERBX_TEST_RXE=1)")
	}
	m := openMachine(t)
	transcripts(t, m.stage, false)
}

// machine is the Soft-RoCE devices, by name, each open.
type machine map[string]verbs.Context

func openMachine(t *testing.T) machine {
	lib, err := rdmacore.Load(rdmacore.Config{})
	enginetest.Must(t, err)
	t.Cleanup(func() { enginetest.Must(t, lib.Close()) })
	devices, err := lib.Devices()
	enginetest.Must(t, err)
	m := machine{}
	for _, d := range devices {
		ctx, err := d.Open()
		enginetest.Must(t, err)
		t.Cleanup(func() { enginetest.Must(t, ctx.Close()) })
		m[d.Name()] = ctx
	}
	for _, name := range []string{"rxe0", "rxe1", "rxe2", "rxe3"} {
		if m[name] == nil {
			t.Fatalf("there is no device %s, want two pairs (test/rxe/run --pairs 2)", name)
		}
	}
	return m
}
