package failover_test

import (
	"fmt"
	"testing"

	"ibverbx"
	"ibverbx/internal/enginetest"
	"ibverbx/reliable"
	"ibverbx/verbs"
)

// TestLanesShareAgain: lanes that share the paths of wrapped rails all recover after outages at one end, even
// though that end creates and loses more QPs than the other.
func TestLanesShareAgain(t *testing.T) {
	for i, flows := range []int{4, 64, 4} {
		carrier := []verbs.QPType{verbs.UC, verbs.UC, verbs.UD}[i]
		for host := range 2 {
			t.Run(fmt.Sprintf("%v/flows=%d/host=%d", carrier, flows, host), func(t *testing.T) {
				wrap := &reliable.Config{Carrier: carrier, Paths: 2, Flows: flows}
				d, _ := newDuoOver(t, []*reliable.Config{wrap, wrap}, ibverbx.Config{Lanes: 8, FragmentSize: 1000}, ibverbx.CQConfig{})
				const rounds, messages, size = 3, 16, 20_000
				local, remote := d.hosts[0].Region(rounds*messages*size), d.hosts[1].Region(rounds*messages*size)
				enginetest.Fill(local.Bytes(), 1)
				for round := range rounds {
					d.post(round*messages, messages/2, size, local, remote)
					d.step()
					d.hosts[host].NICs[0].Fail()
					d.kill(host, 1+2*round%8)
					d.post(round*messages+messages/2, messages/2, size, local, remote)
					n := (round + 1) * messages
					d.until("all complete", func() bool { return len(d.got[0]) == n && len(d.got[1]) == n })
					d.hosts[host].NICs[0].Recover()
					d.until("all lanes are back", d.allUp)
				}
				d.check(rounds*messages, local, remote)
			})
		}
	}
}
