package core_test

import (
	"fmt"
	"log"

	"ibverbx/reliable/core"
)

// Post a WRITE of 100,000 bytes: the connection makes its owner send four chunks.
func Example() {
	conn, err := core.New(core.Config{Paths: 4, PeerCredit: 16})
	if err != nil {
		log.Fatal(err)
	}
	post := core.Event{Kind: core.EvPost, Message: core.Message{Kind: core.MsgWrite, Token: 1, Length: 100_000}}
	now := int64(0) // the owner's clock, in nanoseconds
	for _, a := range conn.Step(now, &post) {
		if a.Kind == core.ActSend {
			fmt.Println("send", a.Len, "bytes at", a.Offset)
		}
	}
	// Output:
	// send 32768 bytes at 0
	// send 32768 bytes at 32768
	// send 32768 bytes at 65536
	// send 1696 bytes at 98304
}
