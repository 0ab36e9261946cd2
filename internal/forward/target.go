package forward

import (
	"fmt"
	"net"
	"strconv"
	"strings"
)

// Target is the destination of a connection, as seen from the Server's host: "host:port", or the
// path of a Unix socket. Targets are compared as text: a host name and its address are two targets.
type Target string

// maxTarget is the maximum length of a Target in bytes.
const maxTarget = 255

// ParseTarget parses "HOST:PORT", "[IPv6]:PORT" or an absolute path.
func ParseTarget(text string) (Target, error) {
	if len(text) > maxTarget || printable(text) != text {
		return "", fmt.Errorf("%q: want at most %d bytes of printable text", text, maxTarget)
	}
	if strings.HasPrefix(text, "/") {
		return Target(text), nil
	}
	host, port, err := net.SplitHostPort(text)
	if err != nil {
		return "", fmt.Errorf("%w: want HOST:PORT or the path of a socket", err)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	switch {
	case err != nil || n == 0:
		return "", fmt.Errorf("%q: the port is not a number from 1 to 65535", text)
	case host == "":
		return "", fmt.Errorf("%q: there is no host", text)
	}
	t := Target(net.JoinHostPort(strings.ToLower(host), strconv.FormatUint(n, 10)))
	if len(t) > maxTarget {
		return "", fmt.Errorf("%q: in lower case it has %d bytes, want at most %d", text, len(t), maxTarget)
	}
	return t, nil
}

// network returns the network of the Target for net.Dial.
func (t Target) network() string {
	if strings.HasPrefix(string(t), "/") {
		return "unix"
	}
	return "tcp"
}
