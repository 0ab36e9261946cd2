package bootstrap

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
)

// Errors. What is returned wraps one of them and says more.
var (
	// ErrConfig says that a Config cannot be used as it is.
	ErrConfig = errors.New("invalid bootstrap configuration")
	// ErrInsecure says that plain text was asked for where it is not allowed.
	ErrInsecure = errors.New("refused to speak plain text")
	// ErrAuth says that one side could not prove to the other who it is.
	ErrAuth = errors.New("not authenticated")
	// ErrVersion says that the two sides speak different versions.
	ErrVersion = errors.New("different protocol versions")
	// ErrProtocol says that the peer sent what it must not.
	ErrProtocol = errors.New("protocol violation")
	// ErrBusy says that the listener has no room for another peer.
	ErrBusy = errors.New("too many peers")
	// ErrTimeout says that the peer did not finish the handshake in time.
	ErrTimeout = errors.New("handshake timeout")
	// ErrSilent says that the peer has said nothing for Config.DeadAfter.
	ErrSilent = errors.New("peer is silent")
	// ErrRestarted says that the peer is not the one that it was: its process was started
	// anew.
	ErrRestarted = errors.New("peer was restarted")
	// ErrPeerClosed says that the peer has closed the connection.
	ErrPeerClosed = errors.New("closed by the peer")
	// ErrClosed says that this side has closed it.
	ErrClosed = errors.New("closed")
	// ErrTooLong says that a message or a datagram is longer than the wire allows.
	ErrTooLong = errors.New("too long")
)

// badConfig is an ErrConfig that says what is wrong.
func badConfig(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrConfig, fmt.Sprintf(format, args...))
}

// violation is an ErrProtocol that says what was wrong.
func violation(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrProtocol, fmt.Sprintf(format, args...))
}

// handshakeError puts a failure of the transport during the handshake into words.
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
		return violation("the peer does not speak TLS (does it run without it, or is it something else?): %v", err)
	case errors.As(err, &verify), errors.As(err, &unknown):
		return fmt.Errorf("%w: %w", ErrAuth, err)
	case errors.As(err, &remote) && remote.Op == "remote error":
		return fmt.Errorf("%w: the peer refused this side: %w", ErrAuth, err)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return violation("the peer hung up in the midst of the handshake")
	}
	return err
}
