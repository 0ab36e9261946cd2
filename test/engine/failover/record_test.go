package failover_test

import (
	"bytes"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/internal/testslice"
	"ibverbx/softnic"
)

// TestRecordFollowsFragments loses a lane at every step of messages that fill the lanes, so that their
// records wait for free slots. The replacement lane is slow. A message's record must move there behind its
// fragments; otherwise the receiver is notified of data that has not arrived.
func TestRecordFollowsFragments(t *testing.T) {
	enginetest.ForEachScheme(t, func(t *testing.T, scheme ibverbx.Scheme) {
		for depth := 1; depth <= 3; depth++ {
			const cuts = 20
			for i := range cuts {
				if testslice.Of(t).Has(i, cuts) {
					recordFollows(t, scheme, depth, 2+3*i)
				}
			}
		}
	})
}

func recordFollows(t *testing.T, scheme ibverbx.Scheme, depth, at int) {
	t.Helper()
	const messages, size, victim = 4, 18 << 10, 2
	d := newDuo(t, 3, ibverbx.Config{Scheme: scheme, Lanes: 3, LaneDepth: depth, FragmentSize: 2048})
	enginetest.Must(t, d.links[0].Impair(d.hosts[0].NICs[0], d.hosts[1].NICs[0], softnic.Impairment{Delay: 300 * time.Microsecond}))
	local, remote := d.hosts[0].Region(messages*size), d.hosts[1].Region(messages*size)
	enginetest.Fill(local.Bytes(), uint64(at))
	d.post(0, messages, size, local, remote)
	checked := 0
	d.until("all messages are done", func() bool {
		switch at--; at {
		case 0:
			d.links[victim].Cut(d.hosts[0].NICs[victim], d.hosts[1].NICs[victim])
		case -60: // the other lanes have finished
			d.kill(0, victim)
		}
		for ; checked < len(d.got[1]); checked++ {
			from, to := checked*size, (checked+1)*size
			if !bytes.Equal(local.Bytes()[from:to], remote.Bytes()[from:to]) {
				t.Fatalf("depth %d, cut %d steps before: message %d was announced before it was there", depth, -at, checked)
			}
		}
		return len(d.got[0]) == messages && len(d.got[1]) == messages
	})
	d.check(messages, local, remote)
}
