package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

const certLong = `Make a small certificate authority and two certificates that it signed, server and client,
for a test between two hosts: ibverbx perf serve on one, ibverbx perf HOST on the other.

Each side needs ca.pem and its own certificate and key. Only their owner can read the keys.
ca.key signs further certificates and is not needed otherwise: keep it, or delete it. The
certificate of the server names the hosts that clients may dial (--host).`

const certExample = `  ibverbx cert                            certs/ for this host and localhost
  ibverbx cert --host node1 --host 10.0.0.1
  ibverbx cert /tmp/try --days 1 --force`

// certFlags holds the flags of the cert command.
type certFlags struct {
	hosts []string
	days  int
	force bool
}

// newCert builds the cert command.
func newCert(s streams) *cobra.Command {
	var f certFlags
	cmd := &cobra.Command{
		Use:     "cert [DIR]",
		Short:   "Make certificates for tests between two hosts",
		Long:    certLong,
		Example: certExample,
		Args:    wantArgs(0, 1, "at most one directory", 0),
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.days < 1 || f.days > 3650 {
				return wrong(cmd, "--days %d: use 1 to 3650", f.days)
			}
			return runCert(s, append(args, "certs")[0], &f)
		},
	}
	fl := cmd.Flags()
	fl.StringArrayVar(&f.hosts, "host", nil, "`name` or address by which clients dial the server; may be repeated (default this host's name, localhost, 127.0.0.1 and ::1)")
	fl.IntVar(&f.days, "days", 30, "how many `days` the certificates are valid")
	fl.BoolVar(&f.force, "force", false, "replace existing files")
	return cmd
}

// runCert writes the authority, the server and client certificates and their keys, then prints how to use them.
func runCert(s streams, dir string, f *certFlags) error {
	if len(f.hosts) == 0 {
		f.hosts = []string{"localhost", "127.0.0.1", "::1"}
		if name, err := os.Hostname(); err == nil && !slices.Contains(f.hosts, name) {
			f.hosts = append([]string{name}, f.hosts...)
		}
	}
	ca, err := newIssuer(f.days)
	if err != nil {
		return err
	}
	server, err := ca.issue("server", f.hosts, x509.ExtKeyUsageServerAuth)
	if err != nil {
		return err
	}
	client, err := ca.issue("client", nil, x509.ExtKeyUsageClientAuth)
	if err != nil {
		return err
	}
	files := slices.Concat(ca.files, server, client)
	if err := writeFiles(dir, files, f.force); err != nil {
		return err
	}
	in := func(name string) string { return filepath.Join(dir, name) }
	for _, file := range files {
		fmt.Fprintf(s.out, "%-24s %s\n", in(file.name), file.what)
	}
	fmt.Fprintf(s.out, `
On the server, with ca.pem, server.pem and server.key:
  ibverbx perf serve --ca %s --cert %s --key %s
On the client, with ca.pem, client.pem and client.key:
  ibverbx perf %s --ca %s --cert %s --key %s
`, in("ca.pem"), in("server.pem"), in("server.key"), f.hosts[0], in("ca.pem"), in("client.pem"), in("client.key"))
	return nil
}

// issuer is a certificate authority.
type issuer struct {
	cert  *x509.Certificate
	key   *ecdsa.PrivateKey
	files []certFile
}

func newIssuer(days int) (*issuer, error) {
	ca := &issuer{}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	now := time.Now()
	ca.cert = &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "ibverbx cert authority"},
		NotBefore: now.Add(-time.Hour), NotAfter: now.AddDate(0, 0, days),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
	}
	ca.files, err = ca.make("ca", "the authority", ca.cert)
	return ca, err
}

// issue creates a key and a certificate signed by the authority.
func (ca *issuer) issue(name string, hosts []string, use x509.ExtKeyUsage) ([]certFile, error) {
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	cert := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "ibverbx " + name},
		NotBefore: ca.cert.NotBefore, NotAfter: ca.cert.NotAfter,
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{use},
	}
	what := "the " + name
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			cert.IPAddresses = append(cert.IPAddresses, ip)
		} else if host == "" || strings.ContainsAny(host, " :/") {
			return nil, refuse(fmt.Sprintf("--host %q", host), "this is neither a name nor an address", "use one without a port")
		} else {
			cert.DNSNames = append(cert.DNSNames, host)
		}
	}
	if len(hosts) > 0 {
		what += " (" + strings.Join(hosts, ", ") + ")"
	}
	return ca.make(name, what, cert)
}

// make creates a key and its certificate, signed by the authority. The authority's own certificate is self-signed.
func (ca *issuer) make(name, what string, cert *x509.Certificate) ([]certFile, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	if ca.key == nil {
		ca.key = key
	}
	der, err := x509.CreateCertificate(rand.Reader, cert, ca.cert, key.Public(), ca.key)
	if err != nil {
		return nil, fmt.Errorf("certificate of %s: %w", what, err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("key of %s: %w", what, err)
	}
	return []certFile{
		{name: name + ".pem", kind: "CERTIFICATE", der: der, mode: 0o644, what: "certificate of " + what},
		{name: name + ".key", kind: "PRIVATE KEY", der: pkcs8, mode: 0o600, what: "key of " + what},
	}, nil
}
