package bootstrap

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
)

// Errors returned by this package, for use with errors.Is. Network errors are returned as they are.
var (
	// ErrConfig means that a Config, an address or an argument is invalid, or that a credentials file cannot be used.
	ErrConfig = errors.New("invalid bootstrap configuration")
	// ErrInsecure means that plain text was requested for an address where it is not allowed.
	ErrInsecure = errors.New("refused to speak plain text")
	// ErrAuth means that one side failed to authenticate, or was rejected by Config.Authorize.
	ErrAuth = errors.New("not authenticated")
	// ErrVersion means that the two sides use different protocol versions.
	ErrVersion = errors.New("different protocol versions")
	// ErrProtocol means that the peer violated the protocol.
	ErrProtocol = errors.New("protocol violation")
	// ErrBusy means that the listener has reached Config.Backlog or Config.MaxHandshakes. Try again later.
	ErrBusy = errors.New("too many peers")
	// ErrTimeout means that the handshake exceeded Config.HandshakeTimeout.
	ErrTimeout = errors.New("handshake timeout")
	// ErrSilent means that the peer was silent for Config.DeadAfter.
	ErrSilent = errors.New("peer is silent")
	// ErrRestarted means that the peer was restarted: its incarnation changed.
	ErrRestarted = errors.New("peer was restarted")
	// ErrPeerClosed means that the peer closed the connection. The text contains its reason, if any.
	ErrPeerClosed = errors.New("closed by the peer")
	// ErrClosed means that this side closed the connection.
	ErrClosed = errors.New("closed")
	// ErrTooLong means that a message or a datagram exceeds MaxMessage or MaxDatagram.
	ErrTooLong = errors.New("too long")
)

// errForbidden is the ErrAuth of a peer that Config.Authorize does not admit.
var errForbidden = fmt.Errorf("%w: not authorized", ErrAuth)

// badConfig returns an ErrConfig with details.
func badConfig(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrConfig, fmt.Sprintf(format, args...))
}

// checkContext returns an ErrConfig for a nil Context.
func checkContext(ctx context.Context) error {
	if ctx == nil {
		return badConfig("the Context is nil")
	}
	return nil
}

// violation returns an ErrProtocol with details.
func violation(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrProtocol, fmt.Sprintf(format, args...))
}

// noProtocol is the TLS alert of a server that speaks only other protocols (RFC 7301, 3.2).
const noProtocol tls.AlertError = 120

// handshakeError explains a transport failure during the handshake.
func handshakeError(err error) error {
	var remote *net.OpError
	var record tls.RecordHeaderError
	var verify *tls.CertificateVerificationError
	var unknown x509.UnknownAuthorityError
	switch {
	case err == nil:
		return nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return ErrTimeout
	case errors.As(err, &record):
		return violation("the peer does not use TLS (is it in plain-text mode, or another program?): %v", err)
	case errors.As(err, &verify), errors.As(err, &unknown):
		return fmt.Errorf("%w: %w", ErrAuth, err)
	case errors.As(err, &remote) && remote.Op == "remote error" && remote.Err.Error() == noProtocol.Error():
		return violation("the peer speaks TLS but not %s", alpn)
	case errors.As(err, &remote) && remote.Op == "remote error":
		return fmt.Errorf("%w: the peer refused this side: %w", ErrAuth, err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return violation("the peer closed the connection during the handshake")
	}
	return err
}
