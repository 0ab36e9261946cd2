package sim

import "testing"

// overtaken is a world in which control messages overtake queued NAKs.
const overtaken = `
hosts 3
rails 1
connections 2
shared 0
failover on
quantum 1us
sizes 0..8
ops read
burst 1
gap 2us
unsignaled 0%
fence 0%
faults 0
rail 0 loss 0% duplicate 0% reorder 0% corrupt 0% delay 25us jitter 0s rate none port-rate 1GB/s port-queue 64KiB paths 1 in-turn off
connection 0 from 1 to 2 lanes 1 scheme tally policy auto fragment 0
connection 1 from 0 to 2 lanes 1 scheme tally policy auto fragment 0
end 0a send-depth 4 recv-depth 64 lane-depth 2 messages 0
end 0b send-depth 4 recv-depth 1 lane-depth 8 messages 5
end 1a send-depth 64 recv-depth 64 lane-depth 64 messages 3000
end 1b send-depth 64 recv-depth 64 lane-depth 64 messages 3000
fault bad-key end 0b at 3us
expect contract
`

// TestRefusalIsHeard: a side whose NIC has refused a request does not reset the lane before the NAK has
// arrived. Otherwise the request is retried and kills one lane after the other, 15 in this world. The first
// NAK costs the lane at both ends, the second fails the VirtualQP.
func TestRefusalIsHeard(t *testing.T) {
	s, err := Parse("overtaken", overtaken)
	if err != nil {
		t.Fatalf("Parse = %v, want none", err)
	}
	pool := NewPool()
	defer func() { _ = pool.Close() }()
	for seed := range uint64(10) {
		plans, err := s.Plans(seed)
		if err != nil {
			t.Fatalf("seed %d: Plans = %v, want none", seed, err)
		}
		r := plans[0].Run(Options{Pool: pool})
		if r.Failure != nil {
			t.Fatalf("seed %d: %v, want no violated guarantee", seed, r.Failure)
		}
		if r.Deaths > 3 || r.FailedQPs != 2 {
			t.Errorf("seed %d: %d lanes died and %d VirtualQPs ended, want at most 3, and 2 that end", seed, r.Deaths, r.FailedQPs)
		}
	}
}
