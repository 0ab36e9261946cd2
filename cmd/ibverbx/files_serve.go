package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"ibverbx/bootstrap"
	"ibverbx/files"
	"ibverbx/internal/forward"
	"ibverbx/node"
)

const serveLong = `Serve files and directories to ibverbx get, put and ls on other hosts. Each PATH is exported under its last
element, or under NAME. Exports are read-only unless --write names them. Symbolic links that lead out of an
export are not followed.

--forward lets other hosts connect to a TCP port or a Unix socket that this host reaches, with ibverbx
forward.

Both sides need the same --token-file (create one with ibverbx token), or certificates (ibverbx cert).
Every client with the token, or with a certificate of the authority, may use all exports; --allow
restricts that to some clients.

Ctrl-C and SIGTERM stop the server (status 0). SIGHUP reopens the access log.`

const serveExample = `  ibverbx token t                           create a secret; copy it to others
  ibverbx serve /models --token-file t      others get models/...
  ibverbx serve /data/v7=models/v7 --token-file t
  ibverbx serve --write /incoming --token-file t
                                            others put incoming/...
  ibverbx serve --forward 127.0.0.1:5432 --token-file t
  ibverbx serve /models --ca ca.pem --cert s.pem --key s.key --allow CN=trainer`

// serveFlags are the flags of serve.
type serveFlags struct {
	fileFlags
	listen string
	allow  []string
	write  []string
	// owner accepts put --owner.
	owner bool
	// targets are the values of --forward.
	targets []string
	// access is the path of --access-log.
	access string
}

func newServe(s streams) *cobra.Command {
	f := &serveFlags{}
	f.logRails = true
	cmd := &cobra.Command{
		Use:     "serve [PATH[=NAME]...] [flags]",
		Short:   "Serve files, directories and TCP ports to other hosts",
		Long:    serveLong,
		Example: serveExample,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args)+len(f.write)+len(f.targets) == 0 {
				return wrong(cmd, "name a file or a directory to serve, a directory with --write, or a target with --forward")
			}
			return notEmpty(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			s := s.logged(f.json)
			err := f.metrics.during(cmd.Context(), s, func() error { return f.run(cmd.Context(), s, args) })
			return f.conclude(s, err, f.plainResult)
		},
	}
	f.define(cmd, s, func(fl *pflag.FlagSet) {
		fl.StringArrayVar(&f.write, "write", nil, "export `DIR[=NAME]` for reading and writing; repeatable")
		fl.BoolVar(&f.owner, "owner", false, "accept put --owner: clients choose owners of files")
		fl.StringArrayVar(&f.targets, "forward", nil, "allow ibverbx forward to connect to `HOST:PORT` or a socket path; repeatable")
		fl.StringSliceVar(&f.allow, "allow", nil, "admit only clients with this `name`: CN=NAME of a certificate, or a file name in --token-dir")
		fl.StringVar(&f.access, "access-log", "", "append a JSON line to `file` per client operation")
		fl.StringVar(&f.listen, "listen", ":"+node.DefaultPort, "listen on `address`")
	})
	return cmd
}

func (f *serveFlags) run(ctx context.Context, s streams, paths []string) (err error) {
	auth, err := f.auth.config(&s, "serve")
	if err == nil && len(f.allow) > 0 && auth.TokenDir == "" && auth.CAFile == "" {
		err = refuse("--allow "+f.allow[0], "clients have names only with --token-dir, or with certificates", "use one of these, or omit --allow")
	}
	if err != nil {
		return err
	}
	messages := &messageLog{s: s}
	messages.watch(&auth)
	listen := withPort(f.listen, node.DefaultPort)
	auth.Name = serverName(listen)
	cfg := node.Config{Auth: auth, Listen: listen, Authorize: f.authorize()}
	local, err := hostAddr(listen)
	if err != nil {
		return err
	}
	all, err := exports(nil, paths, files.ExportConfig{DefaultAccess: files.Read})
	if err == nil {
		all, err = exports(all, f.write, files.ExportConfig{DefaultAccess: files.Read | files.Write, Owners: f.owner})
	}
	if err != nil {
		return err
	}
	targets, err := f.forwards()
	if err != nil {
		return err
	}
	access, err := openAccessLog(f.access, messages.printf)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, access.close()) }()
	e, err := f.open(ctx, s, cfg, local, access.files(), all...) // a client waiting for this server may send requests immediately
	if err != nil && ctx.Err() != nil {
		return nil // a signal is the normal end of a server, even while it starts
	}
	if err != nil {
		return err
	}
	defer func() {
		closed := e.close()
		if errors.Is(closed, context.DeadlineExceeded) { // a silent peer is not a failure of this server
			messages.printf("a peer does not answer and is left")
			closed = nil
		}
		err = errors.Join(err, closed)
	}()
	l, err := forwardStreams().Listen(e.node, forward.Service) // even without targets, so that clients get a reason
	if err != nil {
		return err
	}
	if err := f.announce(s, messages, all, targets, e.node.Addr()); err != nil {
		return err
	}
	server := forward.NewServer(targets, messages.printf)
	if access != nil {
		server.OnServed = access.connection
		defer access.reopening(ctx)()
	}
	return server.Serve(ctx, l) // until Ctrl-C, the normal end of a server
}

// announce prints exports, targets and the address.
func (f *serveFlags) announce(s streams, messages *messageLog, exports []files.ExportConfig, targets []forward.Target, at net.Addr) error {
	if !f.quiet {
		for _, x := range exports {
			messages.printf("serving %s as %s (%v)", x.Path, x.Name, x.DefaultAccess)
		}
		for _, t := range targets {
			messages.printf("forwarding to %s", t)
		}
	}
	messages.printf("listening on %v", at)
	if !f.json {
		return nil
	}
	return printServed(s, exports, targets, at)
}

// printServed prints the lines of --json for exports, targets and the address.
func printServed(s streams, exports []files.ExportConfig, targets []forward.Target, at net.Addr) error {
	out := printer{w: s.out}
	for _, x := range exports {
		out.json(servedLine{Type: lineServing, Name: x.Name, Path: x.Path, Access: x.DefaultAccess.String()})
	}
	for _, t := range targets {
		out.json(servedLine{Type: lineForwarding, Target: string(t)})
	}
	out.json(servedLine{Type: lineListening, Listen: at.String()})
	return out.err
}

// forwards returns the targets of --forward.
func (f *serveFlags) forwards() (list []forward.Target, err error) {
	for _, text := range f.targets {
		t, err := forward.ParseTarget(text)
		if err != nil {
			return nil, refuse("--forward "+text, err.Error(), "use for example --forward 127.0.0.1:5432")
		}
		list = append(list, t)
	}
	return list, nil
}

// exports parses PATH[=NAME] arguments and adds an export for each to list.
func exports(list []files.ExportConfig, args []string, cfg files.ExportConfig) ([]files.ExportConfig, error) {
	for _, arg := range args {
		path, name, named := cutName(arg)
		if path == dash {
			return nil, refuseDash(arg)
		}
		abs, err := filepath.Abs(path)
		if err != nil {
			return nil, err
		}
		if !named {
			name = filepath.Base(abs)
		}
		if i := slices.IndexFunc(list, func(x files.ExportConfig) bool { return x.Name == name }); i >= 0 {
			return nil, refuse(arg, fmt.Sprintf("%s is already served as %q", list[i].Path, name), "give one of them another name: PATH=NAME")
		}
		if info, err := os.Stat(abs); errors.Is(err, fs.ErrNotExist) {
			return nil, refuse(arg, "no such file or directory", "name one that exists")
		} else if err != nil {
			return nil, err
		} else if cfg.DefaultAccess&files.Write != 0 && !info.IsDir() {
			return nil, refuse("--write "+arg, "this is not a directory", "name a directory")
		}
		cfg.Name, cfg.Path = name, abs
		list = append(list, cfg)
	}
	return list, nil
}

// cutName splits PATH=NAME. A path that exists is never split.
func cutName(arg string) (path, name string, named bool) {
	if _, err := os.Stat(arg); err == nil {
		return arg, "", false
	}
	if i := strings.LastIndex(arg, "="); i > 0 {
		return arg[:i], arg[i+1:], true
	}
	return arg, "", false
}

// authorize returns the check of --allow, nil without it.
func (f *serveFlags) authorize() func(bootstrap.Peer) (node.Grant, error) {
	if len(f.allow) == 0 {
		return nil
	}
	return func(p bootstrap.Peer) (node.Grant, error) {
		if c := p.Certificate; c != nil && slices.Contains(f.allow, "CN="+c.Subject.CommonName) {
			return node.Grant{}, nil
		}
		if p.Token != "" && slices.Contains(f.allow, p.Token) {
			return node.Grant{}, nil
		}
		return node.Grant{}, fmt.Errorf("%v is not named by --allow", p.Addr)
	}
}

// hostAddr returns an address of this host for software NICs: the listen address, or the first address that other hosts can reach.
func hostAddr(listen string) (netip.Addr, error) {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return netip.Addr{}, refuse("--listen "+listen, err.Error(), "use HOST:PORT or :PORT")
	}
	if a, err := net.ResolveIPAddr("ip", cmp.Or(host, "0.0.0.0")); err == nil && !a.IP.IsUnspecified() {
		c, err := net.ListenUDP("udp", &net.UDPAddr{IP: a.IP, Zone: a.Zone})
		if err != nil { // an address of another host
			return netip.Addr{}, explainListen(listen, "", err)
		}
		_ = c.Close()
		addr, _ := netip.AddrFromSlice(a.IP)
		return addr.Unmap(), nil
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return netip.Addr{}, err
	}
	best := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().IsGlobalUnicast() && (p.Addr().Is4() || best.IsLoopback()) {
			best = p.Addr()
			if best.Is4() {
				break
			}
		}
	}
	return best, nil
}
