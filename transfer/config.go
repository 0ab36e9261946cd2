package transfer

import (
	"context"
	"fmt"

	"ibverbx/node"
	"ibverbx/verbs"
)

// Access is a set of access rights to a segment: Read, Write or both.
type Access uint8

// Access rights, combined with |.
const (
	// Read allows Get and the digests of Batch.Verify.
	Read Access = 1 << 0
	// Write allows Put.
	Write Access = 1 << 1
)

var accessNames = [...]string{"none", "read", "write", "read and write"}

// String returns "none", "read", "write" or "read and write".
func (a Access) String() string {
	if int(a) < len(accessNames) {
		return accessNames[a]
	}
	return fmt.Sprintf("Access(%d)", uint8(a))
}

// verbs returns the access flags to register the memory with.
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

// Config configures an Engine. Node is required.
type Config struct {
	// Node is the local process on the fabric. Close the Engine before its Node. A Node has at most one Engine at a time.
	Node *node.Node
	// MaxOutstanding is the maximum number of outstanding transfers per peer, at most 1<<20. Submit blocks while the limit is reached. Zero
	// means 4096.
	MaxOutstanding int
	// Authorize returns the access granted to p for a segment. Zero or an error denies access; the peer cannot distinguish that from an
	// unknown name. Access without all rights of want fails with ErrDenied at the peer. Authorize runs in its own goroutine; ctx is
	// canceled when the peer disconnects or after 10 s. Nil grants SegmentConfig.DefaultAccess.
	Authorize func(ctx context.Context, p *node.Peer, name string, want Access) (Access, error)
}

// SegmentConfig configures a segment.
type SegmentConfig struct {
	// DefaultAccess is the access granted to every peer if Config.Authorize is nil. Zero denies access.
	DefaultAccess Access
	// Local hides the segment from Peer.Open. Peer.Grant can still grant access to it. A Local segment does not need a name.
	Local bool
	// HugePages makes Alloc request huge pages, see verbs.MemoryConfig. Adopt and MapFile ignore it.
	HugePages bool
}

const (
	defaultOutstanding = 4096
	maxOutstanding     = 1 << 20
)
