package rpc

import (
	"errors"

	"ibverbx/internal/service"
)

// Errors that a Refusal carries. The services export them.
var (
	ErrNotFound = errors.New("not found")
	ErrDenied   = errors.New("access denied")
	ErrRange    = errors.New("out of range")
	ErrMismatch = service.ErrVersion
	ErrBusy     = errors.New("busy")
	ErrChanged  = errors.New("the file has changed")
	ErrDigest   = errors.New("the digests differ")
	ErrRevoked  = errors.New("revoked by its owner")
	ErrFailed   = errors.New("the peer failed")
	// ErrProtocol means that a peer violated the protocol. It closes the session.
	ErrProtocol = errors.New("protocol violation")
)

// Code is an error on the wire.
type Code uint8

// Codes. Their values must not change.
const (
	NotFound Code = 1 + iota
	Denied
	Range
	UnknownRequest
	Busy
	Changed
	Digest
	Revoked
	Failed
)

var codes = [...]error{
	NotFound: ErrNotFound, Denied: ErrDenied, Range: ErrRange, UnknownRequest: ErrMismatch, Busy: ErrBusy, Changed: ErrChanged, Digest: ErrDigest,
	Revoked: ErrRevoked, Failed: ErrFailed,
}

// Err returns the error of a code. Codes of later versions map to ErrMismatch.
func (c Code) Err() error {
	if int(c) < len(codes) && codes[c] != nil {
		return codes[c]
	}
	return ErrMismatch
}
