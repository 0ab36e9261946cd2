package core

import (
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"
)

// trial is a random network and random messages.
type trial struct {
	*line
	heal int64
}

// drawTrial draws a rig whose network loses, delays and duplicates packets for a while, and whose paths and
// control QPs die, in one direction or both.
func drawTrial(t *rapid.T, tb testing.TB) *trial {
	cfg := Config{
		Paths:      rapid.SampledFrom([]int{1, 2, 4, 16}).Draw(t, "paths"),
		Window:     rapid.SampledFrom([]int{2, 4, 16, 64}).Draw(t, "window"),
		ChunkBytes: 16,
		PathDepth:  rapid.SampledFrom([]int{2, 8, 32}).Draw(t, "depth"),
		Seed:       rapid.Uint64().Draw(t, "seed"),
		PeerCredit: rapid.SampledFrom([]int{1, 8, 64}).Draw(t, "credit"),
		PathCredit: rapid.Bool().Draw(t, "pathCredit"),
		Flows:      rapid.SampledFrom([]int{1, 1, 2, 5}).Draw(t, "flows"),
	}
	if cfg.Speculative = rapid.SampledFrom([]int{0, 0, 16, 100}).Draw(t, "speculative"); cfg.Speculative > 0 {
		cfg.Grants, cfg.PeerGrants = true, true
	}
	if cfg.Carrier.Software = rapid.Bool().Draw(t, "software"); cfg.Carrier.Software {
		cfg.Carrier.Unordered, cfg.Carrier.Shared = rapid.Bool().Draw(t, "unordered"), rapid.Bool().Draw(t, "sharedQPs")
		cfg.Carrier.AckBytes, cfg.Carrier.Burst = rapid.SampledFrom([]int{0, 16, 200}).Draw(t, "ackBytes"), rapid.SampledFrom([]int{0, 100}).Draw(t, "burst")
	}
	other := cfg
	if cfg.Adapt = rapid.Bool().Draw(t, "adapt"); cfg.Adapt {
		cfg.Allowance = rapid.SampledFrom([]int{16, 200}).Draw(t, "allowance")
		other.Adapt, other.Allowance = true, cfg.Allowance
	}
	tr := &trial{line: newLine(tb, cfg, other, 1<<16, cfg.Seed)}
	tr.grant = true
	for i := range tr.ends {
		if rapid.Bool().Draw(t, "shared") {
			tr.share(i)
		}
	}
	if tr.slow = rapid.Bool().Draw(t, "slow"); tr.slow {
		tr.CopyTime = rapid.SampledFrom([]int64{0, 1_000, 100_000}).Draw(t, "copyTime")
		tr.CopyLoss = rapid.SampledFrom([]int{0, 0, 3, 50}).Draw(t, "copyLoss")
	}
	tr.Loss = rapid.SampledFrom([]float64{0, 0.001, 0.01, 0.05, 0.3}).Draw(t, "loss")
	tr.CtrlDup = rapid.SampledFrom([]float64{0, 0.1}).Draw(t, "dup")
	tr.Delay = rapid.SampledFrom([]int64{1_000, 10_000, 200_000}).Draw(t, "delay")
	tr.Jitter = rapid.SampledFrom([]int64{0, 1_000, 1_000_000}).Draw(t, "jitter")
	dead := rapid.SliceOfN(rapid.IntRange(0, 2*(cfg.Paths+2)-1), 0, 4).Draw(t, "dead")
	ackLoss := rapid.SampledFrom([]float64{0, 0, 0.5}).Draw(t, "ackLoss")
	slow := rapid.IntRange(-1, cfg.Paths-1).Draw(t, "slow")
	tr.heal = rapid.SampledFrom([]int64{0, 1_000_000, 20_000_000, 300_000_000}).Draw(t, "heal")
	tr.Lose = func(from int, p *packet) bool {
		if tr.now >= tr.heal {
			return false
		}
		for _, d := range dead {
			if d/2 == int(p.route) && d%2 == from {
				return true
			}
		}
		return p.route < RoutePath && tr.rng.Float64() < ackLoss
	}
	tr.Extra = func(_ int, p *packet) int64 {
		if int(p.route-RoutePath) == slow && tr.now < tr.heal {
			return 5_000_000
		}
		return 0
	}
	return tr
}

// TestTransfers runs random messages in both directions over random networks. Every byte arrives, completions
// are in order and timely, and nothing is written after a completion.
func TestTransfers(t *testing.T) {
	for range 20 { // rapid's own count is for cheaper tests
		rapid.Check(t, func(rt *rapid.T) { playTrial(rt, t) })
	}
}

func playTrial(rt *rapid.T, t *testing.T) {
	tr := drawTrial(rt, t)
	defer func() {
		if v := recover(); v != nil {
			rt.Fatalf("at %d ns: %v", tr.now, v)
		}
	}()
	rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "traffic"), 3))
	var target [2]int
	var late []func() // receives that the user posts when senders have waited
	both := rapid.Bool().Draw(rt, "both")
	for n := range rapid.IntRange(1, 12).Draw(rt, "messages") {
		i := 0
		if both {
			i = n % 2
		}
		m := Message{Kind: MessageKind(rng.IntN(4)), Fence: rng.IntN(8) == 0}
		if rng.IntN(2) == 0 && m.Kind != MsgWrite {
			m.Flags, m.Imm = 2, rng.Uint32()
		}
		size := rng.IntN(40) * rng.IntN(40)
		flow := rng.IntN(len(tr.ends[0].flows))
		if rng.IntN(4) > 0 {
			tr.receiveOn(1-i, flow, 1600)
		} else {
			late = append(late, func() { tr.receiveOn(1-i, flow, 1600) })
		}
		if rng.IntN(3) == 0 {
			tr.run(tr.now+rng.Int64N(200_000), func() bool { return false })
		}
		switch {
		case m.Kind != MsgFetch:
			tr.postOn(i, flow, m, bytesOf(size, rng.Uint64()), target[i])
			target[i] += size
		case size%3 == 0:
			tr.add(i, flow, m.Fence)
		default:
			tr.read(i, flow, rng.IntN(400), size, m.Fence)
		}
	}
	for _, receive := range late {
		tr.run(tr.now+rng.Int64N(3_000_000), func() bool { return false })
		receive()
	}
	tr.Loss = min(tr.Loss, 0.05) // enough to be hard, too little to last forever
	if !tr.run(max(tr.heal, tr.now)+4*second, func() bool { return tr.finished(0) && tr.finished(1) && tr.answered(0) && tr.answered(1) }) {
		rt.Fatalf("stuck at %d ns: %v and %v of %d and %d have ended", tr.now,
			tr.ends[0].done, tr.ends[1].done, len(tr.ends[0].out), len(tr.ends[1].out))
	}
	for i := range tr.ends {
		for k, f := range tr.ends[i].flows {
			for n, s := range f.done {
				if s != statusSuccess {
					rt.Fatalf("message %d of flow %d, end %d ends with %d, want success", n, k, i, s)
				}
			}
			if n := tr.ends[i].conn.flows[k].send.lostCount; n != 0 {
				rt.Fatalf("flow %d of end %d is left with %d lost, want none", k, i, n)
			}
		}
		if c := tr.ends[i].conn; c.flying != 0 || c.flyingBytes != 0 || c.lost != 0 {
			rt.Fatalf("end %d is left with %d flying, %d bytes, %d lost, want none", i, c.flying, c.flyingBytes, c.lost)
		}
	}
}
