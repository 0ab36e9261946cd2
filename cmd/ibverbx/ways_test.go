package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"ibverbx"
	"ibverbx/bootstrap"
	"ibverbx/internal/perf/measure"
	"ibverbx/internal/testslice"
	"ibverbx/node"
	"ibverbx/peer"
	"ibverbx/reliable"
	"ibverbx/stream"
	"ibverbx/transfer"
	"ibverbx/verbs"
)

// used is how a way in has used a Fabric.
type used struct {
	device, transport string
	rails, lanes      int
	link              peer.Link
	sealed            bool
	// took is the duration of the connection and an operation.
	took time.Duration
	// capture holds the packets before encryption.
	capture []byte
	err     error
}

// feature is a field of peer.Fabric with a value whose effect shows.
type feature struct {
	// field is the name in peer.Fabric; about is for the table.
	field, about string
	// set is for Go, args are for the commands.
	set  func(f *peer.Fabric)
	args string
	// works reports whether the field had its effect.
	works func(u *used) bool
	// not holds the ways in that lack the feature, with the reason.
	not map[string]string
}

// Reasons in the table.
const (
	byDropIn = "the program opens its NICs; ibverbx run creates them"
)

// failsWith returns a works for an error.
func failsWith(texts ...string) func(*used) bool {
	return func(u *used) bool {
		return u.err != nil && slices.ContainsFunc(texts, func(t string) bool { return strings.Contains(u.err.Error(), t) })
	}
}

// features has every field of peer.Fabric.
func features() []feature {
	const elsewhere = "192.0.2.1" // no address of this host
	inRun := map[string]string{"run": byDropIn}
	return []feature{
		{
			"Provider", "kind of NICs", func(f *peer.Fabric) { f.Provider = peer.ProviderSoftNIC }, "--provider softnic", func(u *used) bool { return u.err == nil && u.device == "soft0" },
			map[string]string{"run": "software NICs only"},
		},
		{
			"Devices", "real NICs by name", func(f *peer.Fabric) { f.Provider, f.Devices = peer.ProviderRDMACore, "nosuch" }, "--provider rdmacore --devices nosuch",
			failsWith("nosuch", "libibverbs", "no RDMA device"),
			map[string]string{"run": "software NICs only"},
		},
		{"Addrs", "addresses of software NICs", func(f *peer.Fabric) { f.Addrs = []netip.Addr{netip.MustParseAddr(elsewhere)} }, "--addr " + elsewhere, failsWith(elsewhere), nil},
		{
			"Local", "default address of a software NIC", func(f *peer.Fabric) { f.Local = netip.MustParseAddr(elsewhere) }, "", failsWith(elsewhere),
			map[string]string{"perf": "the connection's address", "serve": "the address of --listen", "get": "the address that reaches the peer", "run": "a loopback address per process"},
		},
		{"RailCount", "number of rails", func(f *peer.Fabric) { f.RailCount = 3 }, "--rails 3", func(u *used) bool { return u.rails == 3 }, nil},
		{"Lanes", "number of lanes", func(f *peer.Fabric) { f.Lanes = 1 }, "--lanes 1", func(u *used) bool { return u.lanes == 1 }, map[string]string{"run": "the program creates its QPs"}},
		{"Link", "shared memory or packets", func(f *peer.Fabric) { f.Link = peer.LinkShm }, "--link shm", func(u *used) bool { return u.err == nil && u.link == peer.LinkShm }, nil},
		{
			"Transport", "rc, uc or ud", func(f *peer.Fabric) { f.Transport, f.Link = peer.TransportUD, peer.LinkUDP }, "--transport ud --link udp",
			func(u *used) bool { return u.err == nil && u.transport == "ud" && u.sealed },
			map[string]string{"run": "the program chooses the type of its QPs"},
		},
		{
			"Reliable", "settings of uc and ud", func(f *peer.Fabric) {
				f.Transport, f.Reliable = peer.TransportUC, reliable.Config{Paths: 1000}
			}, "--transport uc --uc-paths 3",
			failsWith("paths", "Paths"),
			map[string]string{"run": "the program chooses the type of its QPs"},
		},
		{"Path", "quality of service, retries", func(f *peer.Fabric) { f.Path.PKeyIndex = 999 }, "--pkey-index 999", failsWith("999"), inRun},
		{"GIDIndex", "rows of GID tables", func(f *peer.Fabric) { f.GIDIndex = []int{99} }, "--gid-index 99", failsWith("99"), inRun},
		{
			"PeerNetworks", "networks of peers' NICs", func(f *peer.Fabric) { f.PeerNetworks = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")} }, "--peer-network 10.0.0.0/8",
			func(u *used) bool { return u.err == nil && u.rails > 0 },
			map[string]string{"run": "connections are the program's"},
		},
		{
			"Unsealed", "plain packets", func(f *peer.Fabric) { f.Unsealed, f.Link = true, peer.LinkUDP }, "--unsealed --link udp", func(u *used) bool { return u.err == nil && !u.sealed },
			map[string]string{"run": "always plain: standard RoCE v2"},
		},
		{
			"RequireSealed", "refuse plain packets", func(f *peer.Fabric) { f.RequireSealed, f.Link = true, peer.LinkUDP }, "--require-sealed --link udp", func(u *used) bool { return u.err == nil && u.sealed },
			map[string]string{"run": "always plain: standard RoCE v2"},
		},
		{
			"Impair", "faults", func(f *peer.Fabric) { f.Impair = []peer.Impair{{Rail: -1, Delay: 50 * time.Millisecond}} }, "--impair delay=50ms",
			func(u *used) bool { return u.err == nil && u.took >= 50*time.Millisecond && u.link != peer.LinkShm }, nil,
		},
		{"Capture", "packets for Wireshark", nil, "", func(u *used) bool { return u.err == nil && bytes.Contains(u.capture, []byte("rail 0 on 127.0.0.1")) }, nil},
	}
}

// way is a way in.
type way struct {
	name string
	// use connects two sides with the Fabric, or with the arguments of the client and the server, and moves data.
	use func(t *testing.T, f *feature) used
}

func ways() []way {
	return []way{
		{"peer", func(t *testing.T, f *feature) used { return withFabric(t, f, usePeer) }},
		{"node", func(t *testing.T, f *feature) used { return withFabric(t, f, useNode(putBytes)) }}, // a Node moves data for its services only
		{"transfer", func(t *testing.T, f *feature) used { return withFabric(t, f, useNode(putBytes)) }},
		{"stream", func(t *testing.T, f *feature) used { return withFabric(t, f, useNode(sendBytes)) }},
		{"perf", usePerf},
		{"serve", func(t *testing.T, f *feature) used { return useFiles(t, f, true) }},
		{"get", func(t *testing.T, f *feature) used { return useFiles(t, f, false) }},
		{"run", useRun},
	}
}

// withFabric calls use with the Fabric of a feature. A Capture is for the second side.
func withFabric(t *testing.T, ft *feature, use func(t *testing.T, f peer.Fabric, auth bootstrap.Config) used) (u used) {
	f := peer.Fabric{Provider: peer.ProviderSoftNIC}
	config, _ := auth(t, ft.sealable())
	began := time.Now()
	if ft.set != nil {
		ft.set(&f)
		u = use(t, f, config)
		u.took = time.Since(began)
		return u
	}
	file := filepath.Join(t.TempDir(), "pcapng")
	var err error
	if f.Capture, err = peer.NewCapture(peer.CaptureConfig{Plain: file}); err != nil {
		t.Fatalf("NewCapture: got %v, want no error", err)
	}
	u = use(t, f, config)
	if err := f.Capture.Close(); err != nil {
		t.Errorf("Capture.Close: got %v, want no error", err)
	}
	u.capture, _ = os.ReadFile(file) // an empty one does not work
	return u
}

// auth returns the authentication for a Fabric and its arguments: a token if packets may be sealed, which needs one.
func auth(t *testing.T, sealable bool) (bootstrap.Config, []string) {
	t.Helper()
	if !sealable {
		return bootstrap.Config{InsecurePlaintextOnLoopback: true}, []string{noAuth}
	}
	file := newToken(t, "a secret of this test, long enough")
	return bootstrap.Config{TokenFile: file}, []string{"--token-file", file}
}

// sealable reports whether the effect of a feature needs a token.
func (f *feature) sealable() bool {
	return slices.Contains([]string{"Transport", "Unsealed", "RequireSealed"}, f.field)
}

func usePeer(t *testing.T, f peer.Fabric, auth bootstrap.Config) (u used) {
	cfg := peer.Config{Auth: auth, Fabric: f, Regions: []peer.RegionConfig{{Size: 4096}}, QP: ibverbx.Config{SendDepth: 16}}
	l, err := peer.Listen(t.Context(), "127.0.0.1:0", cfg)
	if err != nil {
		return used{err: err}
	}
	defer func() { _ = l.Close() }()
	var far *peer.Session
	var wg sync.WaitGroup
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	wg.Go(func() { far, _ = l.Accept(ctx) })
	s, err := peer.Dial(ctx, l.Addr().String(), cfg)
	if err != nil {
		cancel()
	}
	wg.Wait()
	if far != nil {
		defer func() { _ = far.Close() }()
	}
	if err != nil {
		return used{err: err}
	}
	defer func() { _ = s.Close() }()
	wr := ibverbx.SendWR{Opcode: verbs.OpRDMAWrite, Flags: verbs.SendSignaled, Remote: s.Remote("")}
	wr.SetSGE(s.Local("").SGE(0, 4096))
	_, err = s.QP.PostSend([]ibverbx.SendWR{wr})
	done := make([]ibverbx.WC, 1)
	if err == nil {
		if _, err = s.CQ.Wait(ctx, done); err == nil {
			err = done[0].Err()
		}
	}
	rails := s.Rails.Configs()
	return used{
		device: rails[0].Context.Device().Name(), transport: string(peer.TransportOf(rails)), rails: len(rails), lanes: s.Agreed.Lanes,
		link: s.Link, sealed: s.Agreed.Sealed, err: err,
	}
}

// useNode connects two Nodes and moves data.
func useNode(move func(ctx context.Context, here, there *node.Node) error) func(t *testing.T, f peer.Fabric, auth bootstrap.Config) used {
	return func(t *testing.T, f peer.Fabric, auth bootstrap.Config) (u used) {
		there, err := node.New(t.Context(), node.Config{Auth: auth, Listen: "127.0.0.1:0", Fabric: f})
		if err != nil {
			return used{err: err}
		}
		defer func() { _ = there.Close() }()
		if f.Local == (netip.Addr{}) && len(f.Addrs) == 0 {
			f.Local = netip.MustParseAddr("127.0.0.1")
		}
		here, err := node.New(t.Context(), node.Config{Auth: auth, Fabric: f})
		if err != nil {
			return used{err: err}
		}
		defer func() { _ = here.Close() }()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		p, err := here.Peer(ctx, there.Addr().String())
		if err != nil {
			return used{err: err}
		}
		err = move(ctx, here, there)
		s := p.Stats()
		return used{
			device: here.NICs()[0].Context.Device().Name(), transport: here.Snapshot().Transport, rails: len(here.NICs()), lanes: s.Agreed.Lanes,
			link: s.Link, sealed: s.Agreed.Sealed, err: err,
		}
	}
}

// putBytes writes to a segment.
func putBytes(ctx context.Context, here, there *node.Node) error {
	a, err := transfer.New(transfer.Config{Node: here})
	if err != nil {
		return err
	}
	defer func() { _ = a.Close(ctx) }()
	b, err := transfer.New(transfer.Config{Node: there})
	if err != nil {
		return err
	}
	defer func() { _ = b.Close(ctx) }()
	if _, err := b.Alloc("s", 4096, transfer.SegmentConfig{DefaultAccess: transfer.Write}); err != nil {
		return err
	}
	own, err := a.Alloc("s", 4096, transfer.SegmentConfig{})
	if err != nil {
		return err
	}
	p, err := a.Peer(ctx, there.Addr().String())
	if err != nil {
		return err
	}
	remote, err := p.Open(ctx, "s", transfer.Write)
	if err != nil {
		return err
	}
	return p.Batch().Put(remote.At(0), own.Slice(0, 4096)).Do(ctx)
}

// sendBytes sends over a stream and back.
func sendBytes(ctx context.Context, here, there *node.Node) error {
	l, err := stream.Listen(there, "echo")
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }()
	go func() {
		if c, err := l.Accept(); err == nil {
			b := make([]byte, 5)
			_, _ = c.Read(b)
			_, _ = c.Write(b)
			_ = c.Close()
		}
	}()
	p, err := here.Peer(ctx, there.Addr().String())
	if err != nil {
		return err
	}
	c, err := stream.Dial(ctx, p, "echo")
	if err != nil {
		return err
	}
	b := make([]byte, 5)
	if _, err = c.Write([]byte("hello")); err == nil {
		_, err = c.Read(b)
	}
	if err == nil && string(b) != "hello" {
		err = fmt.Errorf("the echo is %q", b)
	}
	return errors.Join(err, c.Close())
}

// settled returns the arguments of a feature, and the capture file, if any.
func settled(t *testing.T, f *feature) (args []string, file string) {
	if f.field == "Capture" {
		file = filepath.Join(t.TempDir(), "pcapng")
		return []string{"--pcap", file}, file
	}
	return strings.Fields(f.args), ""
}

func usePerf(t *testing.T, f *feature) (u used) {
	args, file := settled(t, f)
	_, door := auth(t, f.sealable())
	var both []string // the settings that the client does not decide
	for _, a := range [][]string{{"--unsealed"}, {"--require-sealed"}} {
		if slices.Contains(args, a[0]) {
			both = a
		}
	}
	_, addr := serve(t, append(both, door...)...)
	began := time.Now()
	status, out, stderr := command(t.Context(), append(append([]string{"perf", addr, "-s", "4K", "-n", "10", "--json"}, door...), args...)...)
	u.took = time.Since(began)
	if status != exitOK {
		u.err = errors.New(stderr)
		return u
	}
	var r measure.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatalf("perf %v: %v in %s", args, err, out)
	}
	u.device, _, _ = strings.Cut(r.Device, ",")
	u.transport, u.rails, u.lanes, u.link, u.sealed = string(r.Transport), r.Rails, r.Lanes, peer.Link(r.Link), r.Sealed
	u.capture, _ = os.ReadFile(file)
	return u
}

// useFiles fetches a file. The server or the client has the feature; both have it if they must agree.
func useFiles(t *testing.T, f *feature, server bool) (u used) {
	args, file := settled(t, f)
	_, door := auth(t, f.sealable())
	dir := t.TempDir()
	content(t, filepath.Join(dir, "f"), 100_000)
	var own, theirs []string
	switch {
	case f.field == "Unsealed" || f.field == "Transport":
		own, theirs = args, args
	case server:
		own = args
	default:
		theirs = args
	}
	if f.field == "Reliable" { // the other side has another number of paths
		own, theirs = append([]string{"--transport", "uc"}, own...), append([]string{"--transport", "uc"}, theirs...)
	}
	s := begin(t, append(append([]string{"serve", dir + "=d", "--listen", "127.0.0.1:0", "--provider", "softnic", "--json", "-v"}, door...), own...)...)
	var addr string
	for line := range s.lines {
		s.said = append(s.said, line)
		if _, after, ok := strings.Cut(line, "listening on "); ok {
			addr, _, _ = strings.Cut(after, `"`)
			break
		}
	}
	if addr == "" { // it has failed
		s.end()
		u.err = errors.New(strings.Join(s.said, "\n"))
		return u
	}
	began := time.Now()
	status, out, stderr := command(t.Context(), append([]string{"get", addr, "d/f", filepath.Join(t.TempDir(), "f"), "--json"}, append(door, theirs...)...)...)
	u.took = time.Since(began)
	if status != exitOK {
		u.err = errors.New(stderr)
	}
	if s.interrupt() != exitOK {
		t.Errorf("serve %v: %q", own, s.said)
	}
	if server {
		out = s.stdout.String()
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	var last carried
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &last); err != nil && u.err == nil {
		t.Fatalf("%v: %v in %q", args, err, lines)
	}
	if len(last.Rails) > 0 {
		u.device = last.Rails[0].Device
	}
	u.transport, u.rails, u.lanes, u.link, u.sealed = last.Transport, len(last.Rails), last.Lanes, peer.Link(last.Link), last.Sealed
	u.capture, _ = os.ReadFile(file)
	return u
}

// useRun prints the variables of the drop-in library. TestRunLoss and the suites of dropin run programs with them.
func useRun(t *testing.T, f *feature) (u used) {
	library(t)
	args, file := settled(t, f)
	for i, a := range args {
		if a == "--rails" {
			args[i] = "--count"
		}
	}
	status, out, stderr := command(t.Context(), append(append([]string{"run"}, args...), "--env")...)
	if status != exitOK {
		return used{err: errors.New(stderr)}
	}
	has := func(text string) bool { return strings.Contains(out, text+"\n") }
	if has("IBVERBX_COUNT=3") {
		u.rails = 3
	}
	if has("IBVERBX_LINK=shm") {
		u.link = peer.LinkShm
	}
	if has("IBVERBX_ADDR=192.0.2.1") {
		u.err = errors.New("192.0.2.1 is the address of the first device")
	}
	if has("IBVERBX_DELAY=50ms") {
		u.took = time.Second
	}
	if has("IBVERBX_PCAP=" + file) {
		u.capture = []byte("rail 0 on 127.0.0.1")
	}
	return u
}

// TestWaysIn: every field of peer.Fabric has its effect through every way in, or the table in docs/ways-in.md has the reason why not. With
// IBVERBX_TEST_GOLDEN=1 the table is written anew. A slice has half of the pairs, with every field and every way in.
func TestWaysIn(t *testing.T) {
	all, doors := features(), ways()
	for _, f := range reflect.VisibleFields(reflect.TypeFor[peer.Fabric]()) {
		if !slices.ContainsFunc(all, func(x feature) bool { return x.field == f.Name }) {
			t.Errorf("no test covers Fabric.%s: add it to features", f.Name)
		}
	}
	part, ran := testslice.Of(t).AtMost(2), map[string]bool{}
	for i := range all {
		f := &all[i]
		for j, w := range doors {
			if f.not[w.name] != "" || !part.Has(i+j, len(all)) {
				continue
			}
			ran[f.field], ran[w.name] = true, true
			t.Run(f.field+"/"+w.name, func(t *testing.T) {
				if u := w.use(t, f); !f.works(&u) {
					t.Errorf("it has no effect: got %+v, %v", u, u.err)
				}
			})
		}
	}
	if len(ran) != len(all)+len(doors) {
		t.Errorf("the slice has %v, want every field and every way in", slices.Sorted(maps.Keys(ran)))
	}
	wantWays(t, all, doors)
}
