package bootstrap

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// writeFile replaces a file atomically, as programs that change secrets do.
func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := errors.Join(os.WriteFile(path+".new", []byte(text), 0o600), os.Rename(path+".new", path)); err != nil {
		t.Fatalf("write %s: got %v, want no error", path, err)
	}
}

func secretOf(name string) string { return "the secret of " + name + ", long enough" }

// reloads returns a Config.Reloaded and a function that waits for its next call.
func reloads(t *testing.T) (func(error), func() error) {
	news := make(chan error, 100)
	return func(err error) { news <- err }, func() error {
		t.Helper()
		select {
		case err := <-news:
			return err
		case <-time.After(2 * time.Minute):
			t.Fatalf("no file was read again in 2 minutes, want one")
			return nil
		}
	}
}

// stays checks that messages pass after another round of the watcher.
func stays(t *testing.T, from, to *Conn, what string) {
	t.Helper()
	time.Sleep(2 * checkInterval) // a late round cannot make this fail
	carry(t, from, to, what)
}

// TestRemovedTokenEndsConns: with a token per peer, Peer.Token identifies the peer. Removing a
// token closes its holder's Conns, keeps the others, and rejects the holder from then on.
func TestRemovedTokenEndsConns(t *testing.T) {
	t.Parallel()
	if 2*checkInterval+checkInterval/2 > time.Second {
		t.Errorf("two rounds take %v, want less than a second by far", 2*checkInterval)
	}
	dir := t.TempDir()
	cfg := Config{TokenDir: dir}
	for _, name := range []string{"alice", "bob", ".hidden"} {
		writeFile(t, filepath.Join(dir, name), secretOf(name))
	}
	var next func() error
	cfg.Reloaded, next = reloads(t)
	d := newDoor(t, cfg)
	ends := map[string][2]*Conn{}
	for _, name := range []string{"alice", "bob"} {
		x, y := d.meet(t, Config{Token: []byte(secretOf(name))})
		if got := y.Peer().Token; got != name {
			t.Errorf("the peer has token %q, want %q", got, name)
		}
		ends[name] = [2]*Conn{x, y}
	}
	_, err := Dial(soon(t), d.Addr().String(), Config{Token: []byte(secretOf(".hidden"))})
	wants(t, "Dial with a hidden token", err, ErrAuth)

	if err := os.Remove(filepath.Join(dir, "bob")); err != nil {
		t.Fatalf("Remove: got %v, want no error", err)
	}
	if err := next(); err != nil {
		t.Errorf("Reloaded: got %v, want no error", err)
	}
	<-ends["bob"][1].Done()
	wants(t, "the Conn of a removed token", ends["bob"][1].Err(), ErrAuth)
	<-ends["bob"][0].Done()
	wants(t, "its other end", ends["bob"][0].Err(), ErrPeerClosed)
	stays(t, ends["alice"][0], ends["alice"][1], "alice stays")
	_, err = Dial(soon(t), d.Addr().String(), Config{Token: []byte(secretOf("bob"))})
	wants(t, "Dial with a removed token", err, ErrAuth)

	writeFile(t, filepath.Join(dir, "bob"), secretOf("bob"))
	if err := next(); err != nil {
		t.Errorf("Reloaded: got %v, want no error", err)
	}
	d.meet(t, Config{Token: []byte(secretOf("bob"))})
}

// TestChangedTokenFile: both sides use a new token without a restart. An invalid file is ignored. A
// missing file closes all Conns, even after the listener was closed.
func TestChangedTokenFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "token")
	writeFile(t, file, secretOf("old"))
	cfg := Config{TokenFile: file}
	var next func() error
	cfg.Reloaded, next = reloads(t)
	d := newDoor(t, cfg)
	x, y := d.meet(t, Config{Token: []byte(secretOf("old"))})
	dialed, _ := d.meet(t, Config{TokenFile: file})

	writeFile(t, file, "short")
	if err := next(); !errors.Is(err, ErrConfig) {
		t.Errorf("Reloaded after an invalid token: got %v, want %v", err, ErrConfig)
	}
	stays(t, x, y, "the old token stays")

	writeFile(t, file, secretOf("new"))
	if err := next(); err != nil {
		t.Errorf("Reloaded: got %v, want no error", err)
	}
	<-y.Done()
	wants(t, "the Conn of the old token", y.Err(), ErrAuth)
	<-dialed.Done() // closed by either side
	x, y = d.meet(t, Config{Token: []byte(secretOf("new"))})
	if err := d.Close(); err != nil {
		t.Errorf("Close: got %v, want no error", err)
	}
	stays(t, x, y, "a Conn outlives its listener")
	if err := os.Remove(file); err != nil {
		t.Fatalf("Remove: got %v, want no error", err)
	}
	if err := next(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Reloaded without a file: got %v, want %v", err, os.ErrNotExist)
	}
	<-y.Done()
	wants(t, "the Conn without a token file", y.Err(), ErrAuth)
}

// TestDialerWithoutItsTokenFile: a Dialer whose token file was removed does not dial, and dials again with the next file.
func TestDialerWithoutItsTokenFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "token")
	writeFile(t, file, secretOf("old"))
	cfg := Config{TokenFile: file}
	var next func() error
	cfg.Reloaded, next = reloads(t)
	d := newDoor(t, Config{Token: []byte(secretOf("new"))})
	dialer, err := NewDialer(cfg)
	if err != nil {
		t.Fatalf("NewDialer: got %v, want no error", err)
	}
	defer func() { _ = dialer.Close() }()
	if err := os.Remove(file); err != nil {
		t.Fatalf("Remove: got %v, want no error", err)
	}
	if err := next(); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Reloaded without a file: got %v, want %v", err, os.ErrNotExist)
	}
	_, err = dialer.Dial(soon(t), d.Addr().String())
	wants(t, "Dial without a token file", err, ErrConfig)
	if !strings.Contains(fmt.Sprint(err), file) {
		t.Errorf("Dial without a token file: got %v, want the name of the file", err)
	}

	writeFile(t, file, secretOf("new"))
	if err := next(); err != nil {
		t.Errorf("Reloaded: got %v, want no error", err)
	}
	c, err := dialer.Dial(soon(t), d.Addr().String())
	if err != nil {
		t.Fatalf("Dial with the next file: got %v, want no error", err)
	}
	closeAfter(t, c)
}

// TestRemovedAuthorityEndsConns: when the authority changes, both sides close the Conns of peers
// that it has not signed. Peers of the new authority are admitted, with the listener's new
// certificate.
func TestRemovedAuthorityEndsConns(t *testing.T) {
	t.Parallel()
	before, after := newAuthority(t), newAuthority(t)
	server, renewed := before.config("server", nil), after.config("server", nil)
	var next func() error
	server.Reloaded, next = reloads(t)
	d := newDoor(t, server)
	client := before.config("client", nil)
	client.CAFile = filepath.Join(before.dir, "client-ca.pem")
	writeFile(t, client.CAFile, readFile(t, server.CAFile))
	_, y := d.meet(t, client)
	writeFile(t, server.CertFile, readFile(t, renewed.CertFile))
	writeFile(t, server.KeyFile, readFile(t, renewed.KeyFile))
	writeFile(t, server.CAFile, readFile(t, renewed.CAFile)) // last: once it takes effect, the others have
	for err := next(); err != nil; {                         // a round may have seen one file without the others
		err = next()
	}
	<-y.Done()
	wants(t, "the Conn of the old authority", y.Err(), ErrAuth)
	next2 := after.config("client", nil)
	next2.CAFile = filepath.Join(after.dir, "client-ca.pem")
	writeFile(t, next2.CAFile, readFile(t, renewed.CAFile))
	x, y := d.meet(t, next2)
	stays(t, x, y, "the new authority")
	writeFile(t, next2.CAFile, readFile(t, client.CAFile)) // the dialer no longer trusts the listener
	<-x.Done()
	wants(t, "a dialer whose authority was removed", x.Err(), ErrAuth)
}

func readFile(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("read: got %v, want no error", err)
	}
	return string(b)
}

// TestAuthorize: the program decides by the peer's identity before the listener sends its hello,
// and may revoke the decision.
func TestAuthorize(t *testing.T) {
	a := newAuthority(t)
	server := a.config("server", nil)
	var revoked atomic.Bool
	server.Authorize = func(p Peer) error {
		if name := p.Certificate.Subject.CommonName; name != "friend" || p.Name != "me" || revoked.Load() {
			return fmt.Errorf("no access for %s", name)
		}
		return nil
	}
	d := newDoor(t, server)
	stranger := a.config("stranger", nil)
	stranger.Name = "me"
	_, err := Dial(soon(t), d.Addr().String(), stranger)
	if !errors.Is(err, ErrAuth) || !strings.Contains(err.Error(), "not authorized") {
		t.Errorf("Dial: got %v, want %v because it is not authorized", err, ErrAuth)
	}
	if err := d.rejection(t); !errors.Is(err, ErrAuth) || !strings.Contains(err.Error(), "no access for stranger") {
		t.Errorf("the listener: got %v, want %v and the reason", err, ErrAuth)
	}
	friend := a.config("friend", func(c *x509.Certificate) { c.IPAddresses = nil })
	friend.Name = "me"
	x, y := d.meet(t, friend)
	stays(t, x, y, "a friend")
	revoked.Store(true)
	<-y.Done()
	wants(t, "a peer that is not authorized any more", y.Err(), ErrAuth)

	plain := plainConfig()
	plain.Authorize = func(Peer) error { return errors.New("not this listener") }
	_, err = Dial(soon(t), newDoor(t, plainConfig()).Addr().String(), plain)
	if !errors.Is(err, ErrAuth) || !strings.Contains(err.Error(), "not this listener") {
		t.Errorf("Dial that does not authorize the listener: got %v, want %v", err, ErrAuth)
	}
}

// TestTokenDirRefused: a listener rejects a directory with an invalid token, and a dialer any
// directory.
func TestTokenDirRefused(t *testing.T) {
	twice, short, many := t.TempDir(), t.TempDir(), t.TempDir()
	writeFile(t, filepath.Join(twice, "a"), secretOf("a"))
	writeFile(t, filepath.Join(twice, "b"), secretOf("a")+"\n")
	writeFile(t, filepath.Join(short, "a"), "short")
	for i := range maxTokens + 1 {
		writeFile(t, filepath.Join(many, fmt.Sprint(i)), secretOf("a"))
	}
	for dir, want := range map[string]string{twice: `same token as "a"`, short: "has 5 bytes", many: "at most 256", filepath.Join(twice, "none"): "none"} {
		if _, err := Listen(t.Context(), "127.0.0.1:0", Config{TokenDir: dir}); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), want) {
			t.Errorf("Listen: got %v, want %v and %q", err, ErrConfig, want)
		}
	}
	if _, err := Dial(t.Context(), "127.0.0.1:1", Config{TokenDir: short}); !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), "TokenFile") {
		t.Errorf("Dial: got %v, want %v and to use TokenFile", err, ErrConfig)
	}
}

// TestWrongProofsAreLimited: after ten wrong proofs, a host gets ErrBusy whatever it proves. The
// burst is reported once.
func TestWrongProofsAreLimited(t *testing.T) {
	reports := make(chan error, 1000)
	cfg := tokenConfig()
	cfg.HandshakeTimeout = 2 * time.Minute
	cfg.Rejected = func(_ net.Addr, err error) { reports <- err }
	l, err := Listen(t.Context(), "127.0.0.1:0", cfg)
	if err != nil {
		t.Fatalf("Listen: got %v, want no error", err)
	}
	d := &door{Listener: l}
	var conns []*tls.Conn // all are ready before the first proof, so the proofs arrive together
	for range 30 {
		c := secure(t, d.connect(t))
		wireSend(t, c, framePreface, preface{Version, AuthToken}.encode())
		wireTake(t, c)
		conns = append(conns, c)
	}
	for _, c := range conns {
		wireSend(t, c, frameProof, make([]byte, proofLen))
	}
	codes := map[refusalCode]int{}
	for _, c := range conns {
		h, b := wireTake(t, c)
		if h.typ != frameRefusal {
			t.Fatalf("a wrong proof is answered with a frame of type %d, want a refusal", h.typ)
		}
		codes[refusalCode(b[0])]++
		_ = c.NetConn().Close()
	}
	if codes[refusedAuth] < 10 || codes[refusedBusy] == 0 || len(codes) != 2 { // a slow machine may check more than ten
		t.Errorf("the refusals of 30 wrong proofs are %v, want ten of code %d and then %d", codes, refusedAuth, refusedBusy)
	}
	c, err := Dial(soon(t), l.Addr().String(), tokenConfig())
	if err == nil { // it may have reconnected a second later
		_ = c.Close()
	} else {
		wants(t, "Dial with the right token", err, ErrBusy)
	}
	if err := <-reports; !errors.Is(err, ErrAuth) && !errors.Is(err, ErrBusy) { // the error of any of them
		t.Errorf("the report: got %v, want %v or %v", err, ErrAuth, ErrBusy)
	}
	if err := l.Close(); err != nil {
		t.Errorf("Close: got %v, want no error", err)
	}
	if s := l.Stats(); s.Rejected <= 10 {
		t.Errorf("Stats: got %+v, want more than 10 rejected", s)
	}
	if n := len(reports); n != 0 {
		t.Errorf("%d more reports of one burst, want none", n)
	}
}

// TestFailures: one host may fail ten times at once and then once per second. Others are not
// affected. A burst is reported once, and the next one after ten quiet seconds.
func TestFailures(t *testing.T) {
	var f failureLimiter
	now := time.Unix(1000, 0)
	here, there := origin(address("10.0.0.1:1")), origin(address("10.0.0.2:1"))
	wrong := func() bool { return false }
	count := func(n int) (checked int) {
		for range n {
			if ok, _ := f.try(here, now, wrong); ok {
				checked++
			}
		}
		return checked
	}
	if got := count(1000); got != 10 {
		t.Errorf("%d of 1000 proofs were checked, want 10", got)
	}
	if checked, ok := f.try(there, now, func() bool { return true }); !checked || !ok {
		t.Errorf("another host: checked %v, ok %v, want both", checked, ok)
	}
	if first, second := f.report(here, now), f.report(here, now); !first || second {
		t.Errorf("reported %v and %v, want the first alone", first, second)
	}
	total := 0
	for range 100 {
		now = now.Add(100 * time.Millisecond)
		total += count(100)
	}
	if total != 10 {
		t.Errorf("%d proofs were checked in ten seconds, want 10", total)
	}
	if f.report(here, now) {
		t.Error("reported again during the burst, want not")
	}
	now = now.Add(11 * time.Second)
	if !f.report(here, now) {
		t.Error("not reported after a quiet time, want it reported")
	}
	for i := range 2 * failureOrigins {
		f.try(origin(address(fmt.Sprintf("10.%d.%d.%d:1", 1+i>>16, i>>8&0xff, i&0xff))), now, wrong)
	}
	if len(f.by) > failureOrigins+1 {
		t.Errorf("%d hosts are remembered, want at most %d", len(f.by), failureOrigins+1)
	}
	if checked, _ := f.try(origin(address("10.99.0.1:1")), now, wrong); checked {
		t.Error("a host beyond the limit has a record of its own, want a shared one")
	}
	now = now.Add(time.Minute)
	if checked, _ := f.try(origin(address("10.99.0.1:1")), now, wrong); !checked || len(f.by) > 2 {
		t.Errorf("checked %v with %d records after a minute, want true and the old ones forgotten", checked, len(f.by))
	}
}
