package main

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"sync/atomic"

	"ibverbx/bootstrap"
)

// maxClients is how many clients a server has at once. All but one wait. Further ones are told to try again.
const maxClients = 128

// queue lets the clients of a server measure one at a time, in the order in which they have said what to measure.
type queue struct {
	// turn holds a token while a client is served.
	turn chan struct{}
	// length counts the clients that are served or wait.
	length atomic.Int32
}

func newQueue() *queue { return &queue{turn: make(chan struct{}, 1)} }

// take waits for the turn of a client. A client that has to wait is told how many are before it. After an error the
// client has no turn.
func (q *queue) take(ctx context.Context, conn *bootstrap.Conn) (err error) {
	ahead := int(q.length.Add(1)) - 1
	select {
	case q.turn <- struct{}{}:
		return nil
	default:
		err = conn.Send(ctx, bootstrap.KindApplication, waitNote(max(ahead, 1)))
	}
	if err == nil {
		select {
		case q.turn <- struct{}{}:
			return nil
		case <-ctx.Done():
			err = ctx.Err()
		case <-conn.Done():
			err = conn.Err()
		}
	}
	q.length.Add(-1)
	return err
}

// leave ends the turn of a client.
func (q *queue) leave() {
	<-q.turn
	q.length.Add(-1)
}

// waitPrefix begins the note to a client that has to wait. The other notes of a test are JSON.
const waitPrefix = "wait "

// waitNote tells a client how many are before it.
func waitNote(ahead int) []byte { return fmt.Appendf(nil, waitPrefix+"%d", ahead) }

// waitsBehind returns how many clients are before this one, 0 if b is no such note.
func waitsBehind(b []byte) int {
	n, err := strconv.Atoi(string(bytes.TrimPrefix(b, []byte(waitPrefix))))
	if err != nil || n < 1 || n > maxClients || !bytes.Equal(waitNote(n), b) {
		return 0
	}
	return n
}
