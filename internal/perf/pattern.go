package perf

import (
	"encoding/binary"
	"fmt"
)

// seed names a message: its direction, its QP and its number on that QP.
func seed(flow, queue int, message int64) uint64 {
	return mix(uint64(flow)<<56 ^ uint64(queue)<<40 ^ uint64(message))
}

// mix is the finalizer of splitmix64: each bit of the input moves half of the output.
func mix(x uint64) uint64 {
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

const golden = 0x9e3779b97f4a7c15

// fillPattern fills b with bytes that depend on the seed and on the offset.
func fillPattern(b []byte, seed uint64) {
	for ; len(b) >= 8; b = b[8:] {
		seed += golden
		binary.LittleEndian.PutUint64(b, mix(seed))
	}
	if len(b) > 0 {
		var last [8]byte
		binary.LittleEndian.PutUint64(last[:], mix(seed+golden))
		copy(b, last[:])
	}
}

// checkPattern compares b with the pattern of the seed. If they differ it returns the
// offset of the first byte that is wrong and what should stand there.
func checkPattern(b []byte, seed uint64) (offset int, want byte, ok bool) {
	for off := 0; off < len(b); off += 8 {
		seed += golden
		w := mix(seed)
		if off+8 <= len(b) && binary.LittleEndian.Uint64(b[off:]) == w {
			continue
		}
		for i := off; i < min(off+8, len(b)); i++ {
			if want := byte(w >> (8 * (i - off))); b[i] != want {
				return i, want, false
			}
		}
	}
	return 0, 0, true
}

// MismatchError says that data arrived wrong.
type MismatchError struct {
	Op   Op
	Size int
	// Device is where the wrong byte stands, QP the index of the QP in the test, and
	// Message the number of the message on that QP.
	Device    string
	QP        int
	Message   int64
	Offset    int
	Want, Got byte
}

// Error implements error.
func (e *MismatchError) Error() string {
	return fmt.Sprintf("--check: %s of %s on QP %d, message %d: byte %d on %s is %#02x, want %#02x",
		e.Op, FormatSize(e.Size), e.QP, e.Message, e.Offset, e.Device, e.Got, e.Want)
}

// ImmediateError says that a notification came with the immediate of another message.
type ImmediateError struct {
	Device  string
	Message int64
	Got     uint32
}

// Error implements error.
func (e *ImmediateError) Error() string {
	return fmt.Sprintf("--check: the notification of message %d on %s has the immediate %d, want %d", e.Message, e.Device, e.Got, uint32(e.Message))
}

// AtomicMismatchError says that atomics were lost, repeated or reordered.
type AtomicMismatchError struct {
	Device  string
	QP      int
	Message int64
	// Want is the value that the counter should have had, Got what it had.
	Want, Got uint64
}

// Error implements error.
func (e *AtomicMismatchError) Error() string {
	return fmt.Sprintf("--check: atomic on QP %d, message %d: the counter on %s was %d, want %d",
		e.QP, e.Message, e.Device, e.Got, e.Want)
}
