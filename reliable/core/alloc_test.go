package core

import (
	"testing"

	"ibverbx/reliable/wire"
)

// TestNoAllocations: moving chunks between two connections does not allocate. That includes new and
// retransmitted chunks, acknowledgements, responses, failing and recovering paths, pacing and credit.
func TestNoAllocations(t *testing.T) {
	for i, flows := range []int{1, 8, 8, 1} {
		cfg := Config{Paths: 16, ChunkBytes: 1024, PeerCredit: 256, Flows: flows}
		if i == 3 { // both ends wait for credit
			cfg.Grants, cfg.PeerGrants, cfg.Speculative = true, true, 2048
		}
		if i == 2 {
			cfg.Adapt, cfg.Allowance = true, 2048
		}
		w := wireless{queue: make([]Event, 0, 4096), to: make([]int, 0, 4096)}
		for i := range w.ends {
			c := newConn(t, cfg)
			for k := range flows {
				if err := c.Open(k, FlowConfig{}); flows > 1 && err != nil {
					t.Fatalf("Open(%d) = %v, want none", k, err)
				}
			}
			w.ends[i] = c
		}
		round := func() {
			for i := range 8 {
				w.step(0, &Event{Kind: EvPost, Flow: uint16(i % flows), Message: Message{Kind: MsgWrite, Length: 8 << 10}})
				w.step(0, &Event{Kind: EvPost, Flow: uint16(i % flows), Message: Message{Kind: MsgFetch, Length: wire.FetchLen, Answer: 4 << 10}})
			}
			w.drain()
		}
		round()
		if n := testing.AllocsPerRun(200, round); n != 0 {
			t.Fatalf("%d flows: %v allocations per 104 chunks, want 0", flows, n)
		}
		if s := w.ends[0].Stats(); s.Retransmitted == 0 || !w.idle() {
			t.Fatalf("%d flows: %+v: want retransmissions, and all messages completed", flows, s)
		}
	}
}

// wireless joins two connections by a queue that loses every 31st chunk. It does not carry
// bytes.
type wireless struct {
	ends  [2]*Conn
	now   int64
	queue []Event
	to    []int
	count int
}

func (w *wireless) step(i int, ev *Event) {
	for _, a := range w.ends[i].Step(w.now, ev) {
		switch a.Kind {
		case ActSend:
			w.push(i, Event{Kind: EvSent, Path: a.Path, Epoch: a.Epoch, Count: 1})
			if w.count++; w.count%31 == 0 {
				continue
			}
			kind := EvData
			if a.Imm.Kind != 0 {
				kind = EvChunk
			}
			w.push(1-i, Event{Kind: kind, Path: a.Path, Epoch: a.Epoch, Imm: a.Imm, Header: a.Header, Count: int(a.Len)})
		case ActControl:
			w.push(1-i, Event{Kind: EvRecord, Route: a.Route, Record: a.Record})
		case ActDemand:
			if a.Bytes > 0 {
				w.push(i, Event{Kind: EvGrant, Count: int(min(a.Bytes, 4096))})
			}
		default:
		}
	}
}

func (w *wireless) push(to int, ev Event) {
	w.queue = append(w.queue, ev)
	w.to = append(w.to, to)
}

// idle reports whether all messages have completed.
func (w *wireless) idle() bool {
	for _, f := range w.ends[0].flows {
		if f.send.posted != f.send.reported {
			return false
		}
	}
	return true
}

// drain runs until everything is acknowledged.
func (w *wireless) drain() {
	for {
		for i := 0; i < len(w.queue); i++ {
			w.now += 100
			w.step(w.to[i], &w.queue[i])
		}
		w.queue, w.to = w.queue[:0], w.to[:0]
		if w.idle() {
			return
		}
		for i := range w.ends {
			w.now = max(w.now, min(w.ends[i].Deadline(), w.now+1_000_000))
			w.step(i, &Event{Kind: EvTick})
		}
	}
}
