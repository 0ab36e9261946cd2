package misuse

import (
	"context"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"net"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"ibverbx"
	"ibverbx/bootstrap"
	"ibverbx/cuda"
	"ibverbx/dropin"
	"ibverbx/files"
	"ibverbx/internal/enginetest"
	"ibverbx/metrics"
	"ibverbx/nccl"
	"ibverbx/node"
	"ibverbx/peer"
	"ibverbx/rdmacore"
	"ibverbx/reliable"
	"ibverbx/settings"
	"ibverbx/softnic"
	"ibverbx/stream"
	"ibverbx/transfer"
	"ibverbx/verbs"
)

// functions are the exported functions of the public packages. TestSurface keeps the list complete.
func functions() map[string]any {
	return map[string]any{
		"ibverbx.ControlPair": ibverbx.ControlPair, "ibverbx.DecodeCard": ibverbx.DecodeCard, "ibverbx.DecodeCxxCard": ibverbx.DecodeCxxCard,
		"ibverbx.NewRails": ibverbx.NewRails,
		"bootstrap.Dial":   bootstrap.Dial, "bootstrap.Listen": bootstrap.Listen, "bootstrap.NewDialer": bootstrap.NewDialer, "bootstrap.TokenKey": bootstrap.TokenKey,
		"cuda.Devices": cuda.Devices, "cuda.Load": cuda.Load, "cuda.Open": cuda.Open,
		"dropin.CheckProgram": dropin.CheckProgram, "dropin.Find": dropin.Find, "dropin.Reason": dropin.Reason, "dropin.Variables": dropin.Variables,
		"files.New": files.New, "metrics.NewCollector": metrics.NewCollector, "metrics.NewServer": metrics.NewServer,
		"metrics.NewProcessServer": metrics.NewProcessServer, "node.New": node.New,
		"nccl.Check": nccl.Check, "nccl.Find": nccl.Find, "nccl.Variables": nccl.Variables,
		"peer.Accept": peer.Accept, "peer.Connect": peer.Connect, "peer.Dial": peer.Dial, "peer.Listen": peer.Listen,
		"peer.ImpairmentOf": peer.ImpairmentOf, "peer.NewCapture": peer.NewCapture, "peer.OpenDevices": peer.OpenDevices, "peer.OpenSoftNICs": peer.OpenSoftNICs, "peer.TransportOf": peer.TransportOf,
		"rdmacore.ChooseGID": rdmacore.ChooseGID, "rdmacore.Load": rdmacore.Load, "rdmacore.Select": rdmacore.Select[*rdmacore.Device],
		"reliable.Wrap": reliable.Wrap, "settings.All": settings.All, "settings.ParseImpair": settings.ParseImpair, "settings.ParseSize": settings.ParseSize, "settings.Reserved": settings.Reserved,
		"settings.Unknown": settings.Unknown, "settings.Variables": settings.Variables,
		"softnic.Introduce": softnic.Introduce, "softnic.New": softnic.New, "softnic.NewFaultLink": softnic.NewFaultLink, "softnic.NewMemoryLink": softnic.NewMemoryLink,
		"softnic.NewSeal": softnic.NewSeal, "softnic.NewShmLink": softnic.NewShmLink, "softnic.NewUDPLink": softnic.NewUDPLink,
		"stream.Dial": stream.Dial, "stream.Dialer": stream.Dialer, "stream.ContextDialer": stream.ContextDialer, "stream.Listen": stream.Listen, "stream.NodeStats": stream.NodeStats,
		"stream.StatsByHost": stream.StatsByHost, "transfer.New": transfer.New, "transfer.Progress": transfer.Progress,
		"verbs.AckTimeout": verbs.AckTimeout, "verbs.AdoptMemory": verbs.AdoptMemory, "verbs.AllocMemory": verbs.AllocMemory,
		"verbs.CheckTransition": verbs.CheckTransition, "verbs.ConnectAttr": verbs.ConnectAttr, "verbs.ConnectWith": verbs.ConnectWith,
		"verbs.CutSGE": verbs.CutSGE, "verbs.GIDFromAddr": verbs.GIDFromAddr, "verbs.InitQP": verbs.InitQP, "verbs.Invalidf": verbs.Invalidf,
		"verbs.MTUOf": verbs.MTUOf, "verbs.NewDeviceMemory": verbs.NewDeviceMemory, "verbs.NewOpError": verbs.NewOpError,
		"verbs.NewWaker": verbs.NewWaker, "verbs.NewWakerFunc": verbs.NewWakerFunc, "verbs.ParseGRH": verbs.ParseGRH, "verbs.PartOf": verbs.PartOf,
		"verbs.RNRTimer": verbs.RNRTimer, "verbs.Wait": verbs.Wait,
	}
}

// types are zero values of the exported types with methods.
func types() []any {
	return []any{
		new(bootstrap.Auth), new(bootstrap.Conn), new(bootstrap.Control), new(bootstrap.Dialer), new(bootstrap.Listener),
		new(bootstrap.Secret),
		new(cuda.Driver), new(cuda.Error), new(cuda.GPU), new(cuda.PinnedMemory), new(cuda.Stream),
		new(dropin.Library), new(dropin.OptionError), new(dropin.Options),
		new(files.Engine), new(files.Error), new(files.Export), new(files.Peer), new(files.Transfer),
		new(ibverbx.Card), new(ibverbx.CxxCard), new(ibverbx.EventKind), new(ibverbx.LaneStats), new(ibverbx.Stats), new(ibverbx.Policy), new(ibverbx.Rails),
		new(ibverbx.RecvWR), new(ibverbx.Region), new(ibverbx.Scheme), new(ibverbx.SendWR), new(ibverbx.VirtualCQ),
		new(ibverbx.VirtualQP), new(ibverbx.WC),
		new(metrics.Collector), new(metrics.Server),
		new(nccl.Library),
		new(node.Node), new(node.Peer), new(node.RequestError), new(node.State),
		new(peer.Capture), new(peer.Fabric), new(peer.FabricError), new(peer.Impair), new(peer.Listener), new(peer.MismatchError), new(peer.Offer), new(peer.Session), new(peer.Transport),
		new(rdmacore.Device), new(rdmacore.Library),
		new(reliable.Config),
		new(settings.Settings), new(settings.UnknownVariable), new(settings.ValueError),
		new(softnic.AccessKind), new(softnic.FaultLink), new(softnic.NIC), new(softnic.Neighbor), new(softnic.Seal), new(softnic.UDPLink),
		new(stream.Addr), new(stream.Config), new(stream.Conn), new(stream.Listener),
		new(transfer.Access), new(transfer.Batch), new(transfer.Engine), new(transfer.Error), new(transfer.Grant), new(transfer.Peer),
		new(transfer.Phase), new(transfer.Remote), new(transfer.Segment), new(transfer.Status), new(transfer.Transfer),
		new(verbs.AnySeal), new(verbs.AtomicCap), new(verbs.Endpoint), new(verbs.Event), new(verbs.EventType), new(verbs.GID), new(verbs.GIDType),
		new(verbs.GRH), new(verbs.GUID), new(verbs.LinkLayer), new(verbs.MTU), new(verbs.Memory), new(verbs.OpError), new(verbs.Opcode),
		new(verbs.PathConfig), new(verbs.PortState), new(verbs.QPAttr), new(verbs.QPAttrMask), new(verbs.QPState), new(verbs.QPType),
		new(verbs.RecvWR), new(verbs.SGEPart), new(verbs.SendFlags), new(verbs.SendWR), new(verbs.Status), new(verbs.TransitionError),
		new(verbs.WC), new(verbs.WCError), new(verbs.WCOpcode), new(verbs.Waker),
	}
}

// panics lists the methods of zero values that may panic, by type or by method, with the reason. Their comments mention the panic.
func panics() map[string]string {
	return map[string]string{
		"ibverbx.VirtualQP.PostRecv": "hot path; a VirtualQP comes from VirtualCQ.NewQP", "ibverbx.VirtualQP.PostSend": "hot path",
		"softnic.FaultLink":      "injects faults in tests; comes from NewFaultLink, and most methods cannot return an error",
		"softnic.NIC":            "injects faults in tests; Open, Close and the counters do not panic",
		"verbs.Memory.Release":   "a Release without Retain is a bug that would free memory in use",
		"verbs.PathConfig.Apply": "for providers: the argument is the result", "verbs.QPAttr.Set": "for providers",
		"bootstrap.Conn.Format": "for package fmt", "bootstrap.Secret.Format": "for package fmt",
	}
}

// blocks lists the methods that block with a nil argument, as Go does.
func blocks() []string { return []string{"metrics.Collector.Collect", "metrics.Collector.Describe"} }

// surface returns the exported functions and the exported types with methods in the source of the public packages.
func surface(t *testing.T) (funcs, kinds []string) {
	for _, pkg := range []string{
		"ibverbx", "bootstrap", "cuda", "dropin", "files", "metrics", "nccl", "node", "peer", "rdmacore", "reliable", "settings", "softnic", "stream", "transfer", "verbs",
	} {
		names, err := filepath.Glob(filepath.Join("../..", strings.TrimPrefix(pkg, "ibverbx"), "*.go"))
		if err != nil || len(names) == 0 {
			t.Fatalf("the source of %s: got %d files and %v, want some", pkg, len(names), err)
		}
		for _, name := range names {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatalf("ParseFile: got %v, want no error", err)
			}
			for _, d := range file.Decls {
				switch f, ok := d.(*ast.FuncDecl); {
				case !ok || !f.Name.IsExported():
				case f.Recv == nil:
					funcs = append(funcs, pkg+"."+f.Name.Name)
				default:
					of := f.Recv.List[0].Type
					if star, ok := of.(*ast.StarExpr); ok {
						of = star.X
					}
					if id, ok := of.(*ast.Ident); ok && id.IsExported() {
						kinds = append(kinds, pkg+"."+id.Name)
					}
				}
			}
		}
	}
	slices.Sort(funcs)
	slices.Sort(kinds)
	return slices.Compact(funcs), slices.Compact(kinds)
}

// TestSurface: functions and types list the whole public API.
func TestSurface(t *testing.T) {
	funcs, kinds := surface(t)
	if got := slices.Sorted(maps.Keys(functions())); !slices.Equal(got, funcs) {
		t.Errorf("functions() has %q, the source %q", got, funcs)
	}
	var got []string
	for _, v := range types() {
		got = append(got, reflect.TypeOf(v).Elem().String())
	}
	slices.Sort(got)
	if !slices.Equal(got, kinds) {
		t.Errorf("types() has %q, the source %q", got, kinds)
	}
}

// call calls f with zero values, except for ctx, and returns the panic, if any.
func call(f reflect.Value, ctx context.Context, receiver ...reflect.Value) (panicked any) {
	defer func() { panicked = recover() }()
	args := receiver
	for i := len(receiver); i < f.Type().NumIn(); i++ {
		arg := reflect.Zero(f.Type().In(i))
		if ctx != nil && f.Type().In(i) == reflect.TypeFor[context.Context]() {
			arg = reflect.ValueOf(ctx)
		}
		args = append(args, arg)
	}
	if f.Type().IsVariadic() {
		f.CallSlice(args)
	} else {
		f.Call(args)
	}
	return nil
}

// TestZeroValues calls every function with zero values, and every method of a zero value, with a nil Context and with one that is done. None
// panics, except for the listed ones, and none blocks.
func TestZeroValues(t *testing.T) {
	done, cancel := context.WithCancel(t.Context())
	cancel()
	for _, ctx := range []context.Context{nil, done} {
		for name, f := range functions() {
			if p := call(reflect.ValueOf(f), ctx); p != nil {
				t.Errorf("%s with zero values: panic: %v", name, p)
			}
		}
		for _, v := range types() {
			kind := reflect.TypeOf(v)
			for i := range kind.NumMethod() {
				m := kind.Method(i)
				name := kind.Elem().String() + "." + m.Name
				if slices.Contains(blocks(), name) {
					continue
				}
				p := call(m.Func, ctx, reflect.New(kind.Elem()))
				listed := panics()[name] != "" || panics()[kind.Elem().String()] != "" && !slices.Contains(always(), m.Name)
				if p != nil && !listed {
					t.Errorf("new(%v).%s with zero values: panic: %v", kind.Elem(), m.Name, p)
				}
			}
		}
	}
}

// always lists the methods that never panic, whatever the type.
func always() []string { return []string{"Close", "Err", "Error", "Open", "Stats", "String", "Wait"} }

// TestNil: calls with a nil Context, Node, Peer or Conn, and Close of nil and zero values, return verbs.ErrInvalid or an error for a closed
// object.
func TestNil(t *testing.T) {
	x := newEngines(t)
	p, err := x.transfers[0].Peer(enginetest.Soon(t), x.nodes[1].Addr().String())
	enginetest.WantOK(t, "Peer", err)
	var none context.Context // linters report a literal nil
	result := func(_ any, err error) error { return err }
	for what, c := range map[string]struct{ got, want error }{
		"node.New(nil)":             {result(node.New(none, node.Config{})), verbs.ErrInvalid},
		"new(Node).Close":           {new(node.Node).Close(), node.ErrClosed},
		"nil Node.Close":            {(*node.Node)(nil).Close(), node.ErrClosed},
		"Node.Peer(nil)":            {result(x.nodes[0].Peer(none, "127.0.0.1")), verbs.ErrInvalid},
		"Node.Shutdown(nil)":        {x.nodes[0].Shutdown(none), verbs.ErrInvalid},
		"Transfer.Wait(nil)":        {p.Batch().Submit(t.Context()).Wait(none), verbs.ErrInvalid},
		"Batch.Submit(nil)":         {p.Batch().Submit(none).Wait(t.Context()), verbs.ErrInvalid},
		"transfer.Peer.Open(nil)":   {result(p.Open(none, "kv", transfer.Read)), verbs.ErrInvalid},
		"transfer.Engine.Recv(nil)": {result(x.transfers[0].Recv(none)), verbs.ErrInvalid},
		"transfer.Segment.Close":    {x.segment.Close(none), verbs.ErrInvalid},
		"transfer.Engine.Close":     {x.transfers[0].Close(none), verbs.ErrInvalid},
		"transfer of a zero Node":   {result(transfer.New(transfer.Config{Node: new(node.Node)})), node.ErrClosed},
		"files of a zero Engine":    {result(files.New(files.Config{Transfer: new(transfer.Engine)})), node.ErrClosed},
		"files.Engine.Close":        {x.files[0].Close(none), verbs.ErrInvalid},
		"new(files.Transfer).Wait":  {new(files.Transfer).Wait(t.Context()), files.ErrClosed},
		"stream.Listen(nil)":        {result(stream.Listen(nil, "x")), verbs.ErrInvalid},
		"stream.Listen(new(Node))":  {result(stream.Listen(new(node.Node), "x")), node.ErrClosed},
		"stream.Dial(nil)":          {result(stream.Dial(t.Context(), nil, "x")), verbs.ErrInvalid},
		"stream.Dial(new(Peer))":    {result(stream.Dial(t.Context(), new(node.Peer), "x")), verbs.ErrInvalid},
		"new(stream.Conn).Close":    {new(stream.Conn).Close(), net.ErrClosed},
		"peer.Connect(nil)":         {result(peer.Connect(t.Context(), nil, true, peer.Config{})), verbs.ErrInvalid},
		"bootstrap.Dial(nil)":       {result(bootstrap.Dial(none, "127.0.0.1:1", bootstrap.Config{Token: make([]byte, 32)})), bootstrap.ErrConfig},
		"new(bootstrap.Conn).Close": {new(bootstrap.Conn).Close(), bootstrap.ErrClosed},
		"reliable.Wrap(nil)":        {result(reliable.Wrap(nil, reliable.Config{})), verbs.ErrInvalid},
		"new(VirtualQP).Close":      {new(ibverbx.VirtualQP).Close(), verbs.ErrClosed},
		"new(NIC).Close":            {new(softnic.NIC).Close(), verbs.ErrClosed},
	} {
		if !errors.Is(c.got, c.want) {
			t.Errorf("%s: got %v, want %v", what, c.got, c.want)
		}
	}
}
