package measure

import (
	"context"
	"fmt"
	"time"

	"ibverbx"
	"ibverbx/peer"
)

// Peer is the connection to the process with the other side.
type Peer interface {
	// Open opens c.Rails NICs for this side, or all of them if it has fewer. c is complete.
	// Receives of wrapped NICs may use up to c.Lend bytes; zero means unlimited. Open is called
	// once. At the server it is called after a client's request and may block until it is the
	// client's turn.
	Open(c *Config) ([]ibverbx.RailConfig, error)
	// Waiting is called at a queued client, with the number of clients before it.
	Waiting(ahead int)
	// Send sends a message of at most 1 MiB. Messages arrive in order.
	Send(ctx context.Context, b []byte) error
	// Recv returns the next message. It fails once the other process is dead or unreachable.
	Recv(ctx context.Context) ([]byte, error)
	// Connect opens a Session with cfg, over a link of its choice. The remote side calls Connect
	// too. Neither side sends or receives messages meanwhile.
	Connect(ctx context.Context, cfg peer.Config) (*peer.Session, error)
}

// regionName is the name of the memory that each side exposes to the other.
const regionName = "perf"

// Outcome is the result of one side of a run.
type Outcome struct {
	// Messages is the number of measured messages, without warm-up.
	Messages int64 `json:"messages"`
	// Elapsed is the time it took to send them; 0 if this side measured latency.
	Elapsed time.Duration `json:"elapsed_ns"`
	// Peak is the best rate, in messages per second.
	Peak float64 `json:"peak"`
	// Latency is nil unless this side measured it.
	Latency *LatencyResult `json:"latency,omitempty"`
	// Lanes are the traffic and the health per lane. The traffic is zero if this side did not send.
	Lanes []Lane `json:"lanes"`
	// Rails are the same per rail. They do not name NICs.
	Rails []Rail `json:"rails"`
	// Interrupted is set when the user has stopped the test.
	Interrupted bool `json:"interrupted"`

	lost      int64 // messages that did not arrive
	histogram []Bucket
	hdr       string  // Result.HDR
	copyRate  float64 // Go copy rate in bytes per second, 0 if not measured
}

// openRemote connects this side of a run to the other process. Both lay out their memory alike.
func (t *Test) openRemote(ctx context.Context, r *SizeRun) error {
	cfg := t.peerConfig(&r.plan)
	region := &cfg.Regions[0]
	if from := &t.own.Memory[t.side]; from.Alloc != nil {
		mem, err := from.take(region.Size, &r.closers)
		if err != nil {
			return err
		}
		region.Memory = mem
	}
	session, err := t.peer.Connect(ctx, cfg)
	if err != nil && t.side == 0 && ctx.Err() != nil {
		return errCancelled
	}
	if err != nil {
		return err
	}
	if t.side == 0 {
		ctx = context.WithoutCancel(ctx) // let a connected client notify the server that it stops
	}
	r.session = session
	r.closers.Add(session.Close)
	local, remote := session.Local(regionName), session.Remote(regionName)
	switch need := uint64(r.plan.sideBytes(1 - t.side)); {
	case remote == nil:
		return fmt.Errorf("peer does not expose region %q; available: %q", regionName, session.RemoteNames())
	case remote.Length < need:
		return fmt.Errorf("the remote side exposes %d bytes, and this size needs %d", remote.Length, need)
	}
	mine, theirs := r.sides[t.side], r.sides[1-t.side]
	mine.rails = session.Rails.Configs()
	mine.cq, mine.qp = session.CQ, session.QP
	kill, rails, used := &r.cfg.Kill, len(mine.rails), min(len(mine.rails), session.Agreed.Lanes)
	if kill.On && (kill.Rail >= used || !session.Agreed.Failover) {
		problem := fmt.Sprintf("the two sides agreed on %d rails, with lanes on %d of them", rails, used)
		return Refuse("kill-rail", kill.Rail, problem, "use a smaller rail, or more lanes at the server")
	}
	if err := kill.control(mine.rails); err != nil {
		return err
	}
	mine.region, theirs.remote, theirs.nics = local, remote, "the partner"
	if err := mine.attach(local.Bytes(), region.Memory, r.plan.size); err != nil {
		return err
	}
	r.startControl(ctx, t.peer)
	return nil
}

// peerConfig describes this side of a run. The two sides negotiate lanes, lane depth, fragments,
// MTU and scheme. Send and receive depth are required.
func (t *Test) peerConfig(p *plan) peer.Config {
	cfg := peer.Config{
		Rails: t.rails[t.side], QP: p.virtualConfig(&t.cfg), MTU: t.own.MTU, Schemes: []ibverbx.Scheme{t.own.Scheme},
		NoFailover: t.cfg.direct() || t.own.QPs == 1,
		Regions:    []peer.RegionConfig{{Name: regionName, Size: max(p.sideBytes(t.side), 1)}},
	}
	for s := ibverbx.Tally; s <= ibverbx.Spray; s++ { // the others are accepted too
		if s != t.own.Scheme {
			cfg.Schemes = append(cfg.Schemes, s)
		}
	}
	cfg.QP.Scheme, cfg.QP.Policy = 0, t.own.Policy
	if t.side == 1 {
		cfg.QP.Lanes, cfg.QP.FragmentSize = t.own.QPs, uint32(t.own.Fragment)
	}
	cfg.Minimum = peer.Limits{SendDepth: cfg.QP.SendDepth, RecvDepth: cfg.QP.RecvDepth}
	if cfg.NoFailover {
		cfg.Minimum.LaneDepth = cfg.QP.SendDepth
	}
	return cfg
}
