package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"ibverbx/bootstrap"
	"ibverbx/files"
	"ibverbx/internal/chunk"
	"ibverbx/internal/printable"
	"ibverbx/node"
	"ibverbx/peer"
)

// problem is an error in the user's terms: the input, the fault and the fix. The tool prints text, and with --verbose the cause as well.
type problem struct {
	text  string
	cause error
}

func (p *problem) Error() string { return p.text }
func (p *problem) Unwrap() error { return p.cause }

// explain returns a problem with a cause.
func explain(cause error, format string, args ...any) error {
	return &problem{fmt.Sprintf(format, args...), cause}
}

// printCause prints the cause of a problem if the command has --verbose.
func printCause(cmd *cobra.Command, s streams, err error) {
	var p *problem
	if v := cmd.Flags().Lookup("verbose"); v != nil && v.Value.String() == "true" && errors.As(err, &p) {
		asJSON := cmd.Flags().Lookup("json")
		s = s.logged(cmd.GroupID == groupFiles && asJSON != nil && asJSON.Value.String() == "true")
		fmt.Fprintf(s.err, "cause: %s\n", printable.Lines(p.cause.Error()))
	}
}

// flagError refuses the value of a flag.
func flagError(cmd *cobra.Command, err error) error {
	var invalid *pflag.InvalidValueError
	if !errors.As(err, &invalid) {
		return wrong(cmd, "%w", err)
	}
	cause := invalid.Unwrap()
	text := strings.TrimPrefix(cause.Error(), fmt.Sprintf("size %q: ", invalid.GetValue()))
	if number := new(strconv.NumError); errors.As(cause, &number) {
		text = "use a number"
	}
	return wrong(cmd, "--%s %s: %s", invalid.GetFlag().Name, invalid.GetValue(), text)
}

// server is a command that listens, and its default port.
type server struct{ command, port string }

// The servers of the file commands and of perf.
var (
	fileServer = server{"ibverbx serve", node.DefaultPort}
	perfServer = server{"ibverbx perf serve", defaultPort}
)

// explainDial explains why a server at addr cannot be used. token is the value of --token-file.
func (v server) explainDial(addr, token string, err error) error {
	host, _, _ := net.SplitHostPort(addr)
	var dns *net.DNSError
	var mismatch *peer.MismatchError
	switch {
	case errors.As(err, &mismatch) && mismatch.What == "link" && v == fileServer:
		return explain(err, "no shared memory with %s: this side %s, %s %s; use --link auto or udp on both sides", addr, mismatch.Dialer, addr, mismatch.Listener)
	case errors.As(err, &mismatch) && mismatch.What == "transport" && v == fileServer:
		return explain(err, "different --transport: this side %s, %s %s; use the same on both sides", mismatch.Dialer, addr, mismatch.Listener)
	case errors.As(err, &dns):
		return explain(err, "cannot resolve host %s: %s", host, dns.Err)
	case errors.Is(err, bootstrap.ErrConfig):
		return explainConfig(token, err)
	case isAddress(err):
		return refuse(addr, "this is not an address", badAddress)
	case errors.Is(err, syscall.ECONNREFUSED):
		return explain(err, "nothing listens on %s; is \"%s\" running there?", addr, v.command)
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return explain(err, "%s is unreachable; check the address and the route to it", addr)
	case errors.Is(err, bootstrap.ErrAuth) && token != "" && strings.Contains(err.Error(), "certificate required"):
		return explain(err, "%s requires a certificate, not a token: use --ca, --cert and --key", host)
	case errors.Is(err, bootstrap.ErrAuth) && strings.Contains(err.Error(), "not authorized"):
		return explain(err, "%s does not authorize this client: \"%s\" there needs --allow with its name", host, v.command)
	case errors.Is(err, bootstrap.ErrAuth) && token != "":
		return explain(err, "%s rejected the token in %s: both hosts need the same file", host, token)
	case errors.Is(err, bootstrap.ErrAuth):
		return explain(err, "%s and this host do not accept each other's certificates: both must be signed by the authority in --ca", host)
	case errors.Is(err, bootstrap.ErrPeerClosed) && otherServer(err) != "":
		return explain(err, "%s is \"%s\"; this command needs the port of \"%s\" (default %s)", addr, otherServer(err), v.command, v.port)
	case errors.Is(err, bootstrap.ErrBusy):
		return explain(err, "%s has too many clients, or this host sent too many wrong tokens; try again in a few seconds", addr)
	case errors.Is(err, bootstrap.ErrTimeout):
		return explain(err, "%s accepted the connection, but did not respond; is \"%s\" running there?", addr, v.command)
	case errors.Is(err, context.DeadlineExceeded):
		return explain(err, "%s did not answer within %v; is \"%s\" running there?", addr, connectTime, v.command)
	case errors.Is(err, bootstrap.ErrProtocol), errors.Is(err, syscall.ECONNRESET), isProtocolRefusal(err):
		return explain(err, "%s does not speak the protocol of \"%s\"; check the port (default %s) and that both sides use TLS", addr, v.command, v.port)
	}
	return err
}

// isProtocolRefusal reports whether a server closed the connection because of a protocol violation. For example, package peer listens there.
func isProtocolRefusal(err error) bool {
	return errors.Is(err, bootstrap.ErrPeerClosed) && strings.Contains(err.Error(), bootstrap.ErrProtocol.Error())
}

// otherServer returns the command of a server that refused the protocol of another one, by its reason; "" if it is not such a refusal.
func otherServer(err error) string {
	switch text := err.Error(); {
	case strings.Contains(text, "want a hello"):
		return fileServer.command
	case strings.Contains(text, "during a test"):
		return perfServer.command
	}
	return ""
}

// explainFile explains why a file or a directory of a host cannot be transferred.
func explainFile(host, name, target string, err error) error {
	switch {
	case errors.Is(err, files.ErrIncomplete):
	case errors.Is(err, chunk.ErrKind) && target != "":
		target = inDir(target, name)
		if info, err := os.Stat(target); err == nil && info.IsDir() {
			return &localError{explain(err, "%s is a directory, and %s is a file; name another destination", target, name)}
		}
		return &localError{explain(err, "%s is not a regular file or a directory; name another one", target)}
	case errors.Is(err, chunk.ErrForeign) && target != "":
		target = inDir(target, name)
		dir, base := filepath.Split(target)
		return &localError{explain(err, "%s: other users own its partial file or can write to it; remove %s.%s.ibx-partial, or use a directory that only you can write to", target, dir, base)}
	case errors.Is(err, files.ErrNotFound):
		return explain(err, "%s does not serve %q; see what it serves: ibverbx ls %s", host, name, host)
	case errors.Is(err, files.ErrDenied):
		return explain(err, "%q: the user that runs ibverbx serve on %s cannot read it", name, host)
	case errors.Is(err, fs.ErrPermission) && target != "":
		return &localError{explain(err, "%s: permission denied; use a directory where you may create files", target)}
	case errors.Is(err, syscall.ENOTDIR) && target != "":
		return &localError{explain(err, "%s: this path or its parent is not a directory; name another destination", target)}
	case errors.Is(err, syscall.EROFS) && target != "":
		return &localError{explain(err, "%s: read-only file system; use a directory where you may create files", target)}
	case errors.Is(err, syscall.ENOSPC) && target != "":
		return &localError{explain(err, "%s: no space left on device; free some and run the command again: received data is kept", target)}
	case errors.Is(err, fs.ErrNotExist) && target != "" && isMissing(filepath.Dir(target)):
		return &localError{explain(err, "%s: no such directory; create it first", filepath.Dir(target))}
	}
	return err
}

// explainPut explains why a local file or directory cannot be stored at a host.
func explainPut(host, file, name string, err error) error {
	switch {
	case errors.Is(err, files.ErrIncomplete):
	case errors.Is(err, files.ErrNotFound):
		return explain(err, "%s does not serve %q; see what it serves: ibverbx ls %s", host, name, host)
	case errors.Is(err, files.ErrDenied) && !strings.Contains(err.Error(), "only read is allowed"):
		return explain(err, "%q: the user that runs ibverbx serve on %s cannot write it", name, host)
	case errors.Is(err, files.ErrDenied):
		return explain(err, "%s does not let you write %q; its directory needs: ibverbx serve --write DIR", host, name)
	case errors.Is(err, fs.ErrNotExist) && isMissing(file):
		return &localError{explain(err, "%s: no such file or directory; name one that exists", file)}
	}
	return err
}

// inDir returns the destination of a file: target or, if it is a directory, the last element of name in it.
func inDir(target, name string) string {
	if info, err := os.Stat(target); err == nil && info.IsDir() {
		return filepath.Join(target, path.Base(name))
	}
	return target
}

// isMissing reports whether a local file does not exist.
func isMissing(file string) bool {
	_, err := os.Lstat(file)
	return errors.Is(err, fs.ErrNotExist)
}

// localError is an error of this host, although the file has another one at the peer.
type localError struct{ err error }

func (e *localError) Error() string { return e.err.Error() }
func (e *localError) Unwrap() error { return e.err }

// explainOpen explains why a Node cannot be opened.
func (f *fileFlags) explainOpen(listen string, err error) error {
	var wrong *peer.FabricError
	if errors.As(err, &wrong) {
		return f.fabric.Explain(err)
	}
	return explainListen(listen, f.auth.token, err)
}

// explainListen explains why a server cannot listen. token is the value of --token-file.
func explainListen(listen, token string, err error) error {
	var dns *net.DNSError
	host, _, _ := net.SplitHostPort(listen)
	switch {
	case isNumber(host):
		return explain(err, "--listen %s: this is a host without a port; use :%s to listen on this port", host, host)
	case errors.As(err, &dns):
		return explain(err, "--listen %s: cannot resolve host %s: %s", listen, dns.Name, dns.Err)
	case errors.Is(err, bootstrap.ErrConfig):
		return explainConfig(token, err)
	case isAddress(err):
		return refuse("--listen "+listen, "this is not an address", badAddress)
	}
	return explain(err, "--listen %s: %s", listen, listenCause(err))
}

// explainConfig explains an error of the files with credentials.
func explainConfig(token string, err error) error {
	if errors.Is(err, fs.ErrNotExist) && token != "" {
		return explain(err, "token file %s: no such file; make one with: ibverbx token %s", token, token)
	}
	_, text, _ := strings.Cut(err.Error(), bootstrap.ErrConfig.Error()+": ")
	return explain(err, "%s", text)
}

// badAddress is the fix for an address that isAddress rejects.
const badAddress = "use HOST:PORT with a port of at most 65535"

// isAddress reports whether err rejects the form of an address.
func isAddress(err error) bool {
	var wrong *net.AddrError
	return errors.As(err, &wrong)
}

// isNumber reports whether a host looks like a port.
func isNumber(host string) bool {
	_, err := strconv.ParseUint(host, 10, 16)
	return err == nil
}

// listenCause explains why an address cannot be listened on.
func listenCause(err error) string {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return "the port is in use; use another one, or 0 for a free one"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return "this host does not have the address; use :PORT to listen on all of its addresses"
	case errors.Is(err, syscall.EACCES):
		return "permission denied; use a port above 1023"
	}
	return err.Error()
}
