package reliable_test

import (
	"testing"

	"ibverbx/reliable"
	"ibverbx/verbs"
	"ibverbx/verbs/verbstest"
)

// TestConformance runs the RC part of the conformance suite on wrapped devices, over a lossy
// network.
func TestConformance(t *testing.T) {
	lose(t, "net0", "net1")
	verbstest.Run(t, func(tb testing.TB) verbstest.Pair {
		cfg := reliable.Config{Paths: 2, ChunkBytes: 1024, MinProbe: 20_000_000}
		return verbstest.Pair{A: open(tb, "rxe0", cfg), B: open(tb, "rxe1", cfg), Lossy: true, Departures: departures(), Substitutes: substitutes()}
	})
}

// substitutes returns the statuses that rxe confuses: requests whose memory is found invalid on
// sending fail like requests that do not fit the QP.
func substitutes() map[verbs.Status][]verbs.Status {
	return map[verbs.Status][]verbs.Status{verbs.StatusLocProtErr: {verbs.StatusLocQPOpErr}}
}

// departures returns the tests of the suite that fail on a wrapped rxe, with the reasons.
func departures() map[string]string {
	const spread = "requests travel on many paths: others are under way when one turns out to be wrong"
	const silent = "rxe raises no COMM_EST"
	return map[string]string{
		"events/CommEst":                        silent,
		"events/CommEstByWrite":                 silent,
		"remoteerror/LongWriteChecksWholeRange": spread,
		"remoteerror/EarlierRequestsSucceed":    spread,
		"write/LastOneWins":                     "WRITEs of different requests travel on different paths and are not ordered among themselves",
	}
}
