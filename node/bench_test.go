package node

import (
	"net/netip"
	"testing"

	"ibverbx"
	"ibverbx/internal/nullnic"
	"ibverbx/internal/service"
	"ibverbx/peer"
	"ibverbx/verbs"
)

// overNull makes a host use a null NIC, which does not move data.
func overNull() func(*Config) {
	return func(c *Config) {
		c.PeerNetworks = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
		c.Open = func() (peer.NICs, error) {
			return peer.NICs{Rails: []ibverbx.RailConfig{{Context: nullnic.New("null0", 0x11)}}}, nil
		}
	}
}

// counting is a Sink that counts completed operations.
type counting struct{ ended int }

func (c *counting) End(_ *service.Op, err error) {
	if err != nil {
		panic(err)
	}
	c.ended++
}

// BenchmarkSubmit measures an 8-byte operation over a null NIC: with one block and 64 outstanding operations,
// and with 64 blocks, per block. The difference to the raw VirtualQP is the Node's overhead.
func BenchmarkSubmit(b *testing.B) {
	for _, bench := range []struct {
		name   string
		blocks int
	}{{"single", 1}, {"batch=64", 64}} {
		b.Run(bench.name, func(b *testing.B) {
			n := newNetwork(1)
			near, far := n.start(b, overNull()), n.start(b, overNull())
			there, err := near.node.Peer(b.Context(), far.node.Addr().String())
			if err != nil {
				b.Fatal(err)
			}
			proto := near.job(there, verbs.OpRDMAWrite, 0, 8)
			var blocks []service.Block
			for range bench.blocks {
				blocks = append(blocks, proto.Blocks[0])
			}
			sink := &counting{}
			ops := make([]service.Op, 64)
			for i := range ops {
				ops[i] = service.Op{Blocks: blocks, Replay: true, Sink: sink}
			}
			p := there.Service()
			submitted := 0
			b.ReportAllocs()
			for b.Loop() {
				for range 64 / bench.blocks {
					op := &ops[submitted%len(ops)]
					for submitted >= len(ops) && !ended(op) {
						p.Help()
					}
					p.Submit(op)
					submitted++
				}
			}
			for i := range ops { // closing the Node would fail the remaining ones
				for !ended(&ops[i]) {
					p.Help()
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(submitted*bench.blocks), "ns/block")
		})
	}
}

func ended(op *service.Op) bool { return !op.Pending() }
