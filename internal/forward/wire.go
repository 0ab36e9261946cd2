package forward

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A request is a byte with the wanted action, a byte with the length of the target, and the target.
// A reply is a byte with the status, a byte with the length of a text, and the text, which explains
// a failure.

// requestKind is the action requested by a Client.
type requestKind byte

const (
	wantConnection requestKind = 1 // a connection to the target
	wantCheck      requestKind = 2 // only check whether it is allowed
)

// status is the result in a Server's reply.
type status byte

const (
	statusOK      status = 0 // the target's data follows, unless it was a check
	statusUnnamed status = 1 // the target is not listed
	statusFailed  status = 2 // the target cannot be reached
	statusBusy    status = 3 // the Client's share is used up for now
)

// errProtocol means that the peer violated the protocol.
var errProtocol = errors.New("protocol violation")

type request struct {
	want   requestKind
	target Target
}

type reply struct {
	status status
	text   string
}

func (q request) encode() []byte { return encode(byte(q.want), string(q.target)) }

func (r reply) encode() []byte { return encode(byte(r.status), r.text) }

func encode(first byte, text string) []byte {
	return append([]byte{first, byte(len(text))}, text...)
}

// decode reads a byte and a text.
func decode(from io.Reader) (first byte, text string, err error) {
	var head [2]byte
	if _, err := io.ReadFull(from, head[:]); err != nil {
		return 0, "", err
	}
	b := make([]byte, head[1])
	if _, err := io.ReadFull(from, b); err != nil {
		return 0, "", err
	}
	if text = string(b); printable(text) != text {
		return 0, "", fmt.Errorf("%w: the text %q", errProtocol, text)
	}
	return head[0], text, nil
}

func readRequest(from io.Reader) (q request, err error) {
	first, text, err := decode(from)
	if err != nil {
		return q, err
	}
	q = request{requestKind(first), Target(text)}
	if q.want != wantConnection && q.want != wantCheck {
		return q, fmt.Errorf("%w: a request of kind %d", errProtocol, first)
	}
	return q, nil
}

func readReply(from io.Reader) (r reply, err error) {
	first, text, err := decode(from)
	if err != nil {
		return r, err
	}
	r = reply{status(first), text}
	if r.status > statusBusy || r.status == statusOK && text != "" {
		return r, fmt.Errorf("%w: status %d with %q", errProtocol, first, text)
	}
	return r, nil
}

// printable replaces characters that a terminal would not show literally, and truncates the text to
// fit.
func printable(text string) string {
	text = strings.Map(func(r rune) rune {
		if strconv.IsPrint(r) && r != utf8.RuneError {
			return r
		}
		return '?'
	}, text)
	for len(text) > maxTarget {
		_, n := utf8.DecodeLastRuneInString(text)
		text = text[:len(text)-n]
	}
	return text
}
