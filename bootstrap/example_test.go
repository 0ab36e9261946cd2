package bootstrap_test

import (
	"context"
	"fmt"
	"log"

	"ibverbx/bootstrap"
)

// Two processes that share a token connect, and one sends a message to the other. Here both run in
// one process.
func Example() {
	ctx := context.Background()
	cfg := bootstrap.Config{Token: []byte("or from a file: TokenFile")}
	l, err := bootstrap.Listen(ctx, "127.0.0.1:0", cfg)
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		conn, err := l.Accept(ctx) // returns when the peer has proved that it knows the token
		if err != nil {
			log.Fatal(err)
		}
		defer conn.Close()
		m, err := conn.Recv(ctx)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("received %q\n", m.Body)
		if err := conn.Send(ctx, bootstrap.KindDone, nil); err != nil {
			log.Fatal(err)
		}
	}()
	conn, err := bootstrap.Dial(ctx, l.Addr().String(), cfg)
	if err != nil {
		log.Fatal(err)
	}
	defer conn.Close()
	if err := conn.Send(ctx, bootstrap.KindApplication, []byte("hello")); err != nil {
		log.Fatal(err)
	}
	if _, err := conn.Recv(ctx); err != nil { // wait until the message was received
		log.Fatal(err)
	}
	<-done
	// Output:
	// received "hello"
}
