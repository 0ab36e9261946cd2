package bootstrap

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Version is the protocol version.
const Version = 1

const magic = "ibverbx\n"

// preface is the first frame of each side:
//
//	0              8         10     11  12
//	| "ibverbx\n"  | version | auth | 0 |
type preface struct {
	version uint16
	auth    Auth
}

func (p preface) encode() []byte {
	b := append(make([]byte, 0, prefaceLen), magic...)
	b = binary.BigEndian.AppendUint16(b, p.version)
	return append(b, byte(p.auth), 0)
}

// decodePreface decodes a peer's preface. For another version it checks only the fields that
// all versions share.
func decodePreface(b []byte) (p preface, err error) {
	if len(b) != prefaceLen || string(b[:8]) != magic {
		return p, violation("not an ibverbx preface")
	}
	p = preface{version: binary.BigEndian.Uint16(b[8:]), auth: Auth(b[10])}
	if p.version == Version && (p.auth < AuthCertificate || p.auth > AuthNone || b[11] != 0) {
		return p, violation("a preface with authentication %d and reserved byte %#x", b[10], b[11])
	}
	return p, nil
}

// hello identifies a side and states its limits:
//
//	0             8            12         16
//	| incarnation | dead after | window   | name ... [0 | optional fields ...]
//
// Optional fields are reserved for later versions and ignored. dead after is in milliseconds. window is the number of message bytes that
// may be sent before the first frameWindow.
type hello struct {
	incarnation uint64
	deadAfter   time.Duration
	window      uint32
	name        string
}

func (h *hello) encode() []byte {
	b := binary.BigEndian.AppendUint64(make([]byte, 0, helloMin+len(h.name)), h.incarnation)
	b = binary.BigEndian.AppendUint32(b, uint32(h.deadAfter/time.Millisecond))
	b = binary.BigEndian.AppendUint32(b, h.window)
	return append(b, h.name...)
}

func decodeHello(b []byte) (h hello, err error) {
	if len(b) < helloMin || len(b) > helloMax {
		return h, violation("a hello has %d bytes", len(b))
	}
	name, _, _ := strings.Cut(string(b[helloMin:]), "\x00")
	h = hello{
		incarnation: binary.BigEndian.Uint64(b), deadAfter: time.Duration(binary.BigEndian.Uint32(b[8:])) * time.Millisecond,
		window: binary.BigEndian.Uint32(b[12:]), name: name,
	}
	switch {
	case h.incarnation == 0 || h.incarnation > maxIncarnate:
		return h, violation("incarnation %d: want 1 to 2^53-1", h.incarnation)
	case h.deadAfter < minDeadAfter || h.deadAfter > maxDeadAfter:
		return h, violation("the peer's DeadAfter is %v: want %v to %v", h.deadAfter, minDeadAfter, maxDeadAfter)
	case h.window < minWindow || h.window > maxWindow:
		return h, violation("a window of %d bytes: want %d to %d", h.window, minWindow, maxWindow)
	case len(h.name) > maxName || !utf8.ValidString(h.name):
		return h, violation("the peer's name has %d bytes: want at most %d of UTF-8", len(h.name), maxName)
	}
	return h, nil
}

// refusal aborts a handshake:
//
//	0      1
//	| code | text ...
type refusal struct {
	code refusalCode
	text string
}

type refusalCode uint8

const (
	refusedVersion refusalCode = iota + 1
	refusedAuth
	refusedProtocol
	refusedBusy
	refusalEnd
)

// sentinels maps the codes to errors.
var sentinels = [refusalEnd]error{
	refusedVersion: ErrVersion, refusedAuth: ErrAuth, refusedProtocol: ErrProtocol, refusedBusy: ErrBusy,
}

func (r *refusal) encode() []byte { return append([]byte{byte(r.code)}, clip(r.text)...) }

func decodeRefusal(b []byte) (r refusal, err error) {
	if len(b) < 1 || len(b) > 1+maxText || b[0] == 0 || b[0] >= byte(refusalEnd) {
		return r, violation("a refusal of %d bytes has no valid code", len(b))
	}
	return refusal{code: refusalCode(b[0]), text: string(b[1:])}, nil
}

// Error quotes the peer's text, because it may contain arbitrary bytes.
func (r *refusal) Error() string {
	return fmt.Sprintf("%v: the peer refused this side: %s", sentinels[r.code], quoted(r.text))
}

func (r *refusal) Unwrap() error { return sentinels[r.code] }

// refusalOf maps err to the refusal sent to the peer. It reveals little, because the peer is not authenticated.
func refusalOf(err error) *refusal {
	switch {
	case errors.Is(err, ErrVersion):
		return &refusal{code: refusedVersion, text: fmt.Sprintf("this side has version %d", Version)}
	case errors.Is(err, errForbidden):
		return &refusal{code: refusedAuth, text: "not authorized"}
	case errors.Is(err, ErrAuth):
		return &refusal{code: refusedAuth, text: "proof missing or wrong"}
	case errors.Is(err, ErrBusy):
		return &refusal{code: refusedBusy, text: "too many peers are waiting: try again later"}
	}
	return &refusal{code: refusedProtocol, text: "protocol violation"}
}

// quoted makes a peer's text safe for a terminal.
func quoted(text string) string { return strconv.Quote(clip(text)) }

// clip cuts a text to the length that fits a frame.
func clip(text string) string {
	if len(text) > maxText {
		return text[:maxText]
	}
	return text
}
