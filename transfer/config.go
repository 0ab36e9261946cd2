package transfer

import (
	"context"
	"fmt"

	"ibverbx/node"
	"ibverbx/verbs"
)

// Access is what a peer may do with a segment: Read, Write or both.
type Access uint8

// Kinds of access.
const (
	Read  Access = 1 << 0
	Write Access = 1 << 1
)

var accessNames = [...]string{"none", "read", "write", "read and write"}

// String names the access.
func (a Access) String() string {
	if int(a) < len(accessNames) {
		return accessNames[a]
	}
	return fmt.Sprintf("Access(%d)", uint8(a))
}

// verbs returns what a NIC must allow.
func (a Access) verbs() verbs.Access {
	var v verbs.Access
	if a&Read != 0 {
		v |= verbs.AccessRemoteRead
	}
	if a&Write != 0 {
		v |= verbs.AccessRemoteWrite | verbs.AccessLocalWrite
	}
	return v
}

// Config describes an Engine. Node must be set.
type Config struct {
	// Node is this process on the fabric. The Engine must be closed before it. A Node has one Engine at a time.
	Node *node.Node
	// MaxOutstanding is how many transfers with one peer may be under way. Submit waits for room. Zero means 4096.
	MaxOutstanding int
	// Authorize returns the access granted to p for a segment. Zero or an error denies access; the peer cannot distinguish that from an
	// unknown name. Authorize runs in its own goroutine; ctx is canceled when the peer disconnects or times out. Nil grants
	// SegmentConfig.DefaultAccess.
	Authorize func(ctx context.Context, p *node.Peer, name string, want Access) (Access, error)
}

// SegmentConfig describes a segment.
type SegmentConfig struct {
	// DefaultAccess is what every peer may do if Config.Authorize is nil. Zero means nothing.
	DefaultAccess Access
	// Local makes a segment that is never lent.
	Local bool
	// HugePages asks Alloc for huge pages, see verbs.MemoryConfig.
	HugePages bool
}

const (
	defaultQueue = 4096
	maxQueue     = 1 << 20
)
