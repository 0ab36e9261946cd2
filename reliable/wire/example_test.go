package wire_test

import (
	"errors"
	"fmt"

	"ibverbx/reliable/wire"
)

// Encode a chunk of a SEND and decode it again. Decoding is strict: a truncated payload is an error.
func ExampleDecodeHeader() {
	h := wire.Header{Op: wire.OpEager, Flags: wire.FlagLast, Message: 7, Len: 5}
	b := make([]byte, wire.HeaderLen, wire.HeaderLen+5)
	h.Put(b)
	b = append(b, "hello"...)

	got, err := wire.DecodeHeader(b)
	fmt.Println(got.Message, got.Len, err)
	_, err = wire.DecodeHeader(b[:len(b)-1])
	fmt.Println(errors.Is(err, wire.ErrMalformed))
	// Output:
	// 7 5 <nil>
	// true
}
