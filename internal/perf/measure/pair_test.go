package measure

import (
	"fmt"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/verbs"
)

// The settings in Config reach the VirtualQP.
func TestVirtualConfig(t *testing.T) {
	c := Config{QPs: 6, Scheme: ibverbx.Spray, Policy: ibverbx.TwoChoices, Fragment: 5000, Imm: true, TxDepth: 40, CQMod: 10}.withDefaults()
	p := newPlan(&c, 20000, 4096)
	got := p.virtualConfig(&c)
	want := ibverbx.Config{
		Lanes: 6, Scheme: ibverbx.Spray, Policy: ibverbx.TwoChoices, FragmentSize: 5000,
		SendDepth: 40, RecvDepth: 50, LaneDepth: 80, NotifyDepth: 80,
	}
	if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", want) {
		t.Errorf("virtualConfig = %+v, want %+v", got, want)
	}
}

// Every QP is connected with the configured MTU.
func TestMTU(t *testing.T) {
	for _, cfg := range []Config{{}, {QPs: 1}, {Connection: verbs.UC, QPs: 2}} {
		cfg.MTU = 512
		w := newWire()
		openRow(t, w, cfg, 64)
		for _, q := range w.qps {
			if q.mtu != verbs.MTU512 {
				t.Errorf("%+v: QP %d has the MTU %d, want 512", cfg, q.num, q.mtu.Bytes())
			}
		}
	}
}

// A VirtualQP without completions is still polled periodically.
func TestQuietEndIsPolled(t *testing.T) {
	w := newWire()
	if _, err := run(t, w, Config{Sizes: []int{8}, Iterations: 10000, TxDepth: 8, CQMod: 4}); err != nil {
		t.Fatalf("Run: got %v, want no error", err)
	}
	busy, quiet := w.polls["fake0"], w.polls["fake1"]
	if quiet < 10 || quiet > busy/10 {
		t.Errorf("the target was polled %d times and the initiator %d times, want some and far fewer", quiet, busy)
	}
}

// A completion with a wrong length fails the test.
func TestWrongLength(t *testing.T) {
	for _, cfg := range []Config{
		{Op: Send, QPs: 1}, {Op: Send}, {Imm: true, QPs: 1}, {Imm: true, Scheme: ibverbx.DQPLB}, {Op: Send, Connection: verbs.UD},
	} {
		cfg.Sizes, cfg.Iterations = []int{100}, 10
		w := newWire()
		w.length = func(n uint32) uint32 { return n + 3 }
		_, err := run(t, w, cfg)
		if want := "a message of 100 bytes arrived with 103"; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: error %v, want %q", cfg, err, want)
		}
	}
}

// TestCompletionOrder: with a check, a sender whose chains complete out of posting order fails the
// test.
func TestCompletionOrder(t *testing.T) {
	f := &flow{cfg: &Config{}, queues: []queue{{chains: make([][]ibverbx.SendWR, 3)}}, target: &buffer{memory: &memory{}}, source: &buffer{memory: &memory{}}}
	for _, chain := range []int{0, 1, 2, 0} {
		if err := f.completedSend(&ibverbx.WC{WRID: requestID(0, 7, chain)}); err != nil {
			t.Fatalf("chain %d: got %v, want no error", chain, err)
		}
	}
	if err := f.completedSend(&ibverbx.WC{WRID: requestID(0, 7, 2)}); err == nil || !strings.Contains(err.Error(), "chain 2 of QP 0 completed before chain 1") {
		t.Errorf("chain 2 before chain 1: got %v, want an error that names them", err)
	}
}
