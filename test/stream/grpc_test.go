package stream_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"ibverbx/stream"
)

// service describes a gRPC service without generated code. Messages are bytes.
var service = grpc.ServiceDesc{
	ServiceName: "Echo",
	HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{
		{MethodName: "Unary", Handler: unary},
		{MethodName: "Wait", Handler: func(_ any, ctx context.Context, _ func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			<-ctx.Done()
			return nil, status.FromContextError(ctx.Err()).Err()
		}},
	},
	Streams: []grpc.StreamDesc{{StreamName: "Both", Handler: both, ClientStreams: true, ServerStreams: true}},
}

func unary(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
	m := &wrapperspb.BytesValue{}
	return m, decode(m)
}

// both echoes each message.
func both(_ any, s grpc.ServerStream) error {
	for {
		m := &wrapperspb.BytesValue{}
		if err := s.RecvMsg(m); err != nil {
			if err == io.EOF {
				return nil
			}
			return err
		}
		if err := s.SendMsg(m); err != nil {
			return err
		}
	}
}

// serveGRPC starts a gRPC server on a Listener and returns it with a client that connects through dial.
func serveGRPC(t testing.TB, l net.Listener, dial func(context.Context, string) (net.Conn, error), addr string) (*grpc.Server, *grpc.ClientConn) {
	t.Helper()
	s := grpc.NewServer()
	s.RegisterService(&service, nil)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	c, err := grpc.NewClient("passthrough:///"+addr, grpc.WithContextDialer(dial), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatalf("NewClient: got %v, want no error", err)
	}
	t.Cleanup(func() {
		_ = c.Close()
		s.Stop()
		if err := <-done; err != nil {
			t.Errorf("Serve: got %v, want no error", err)
		}
	})
	return s, c
}

func (p *pair) grpc(t testing.TB) (*grpc.Server, *grpc.ClientConn) {
	t.Helper()
	return serveGRPC(t, p.listen(t, "grpc"), stream.ContextDialer(p.client), p.addr("grpc"))
}

// call runs a unary call.
func call(ctx context.Context, c *grpc.ClientConn, method string, body []byte) ([]byte, error) {
	m := &wrapperspb.BytesValue{}
	err := c.Invoke(ctx, "/Echo/"+method, wrapperspb.Bytes(body), m)
	return m.Value, err
}

func wantCode(t testing.TB, what string, err error, want codes.Code) {
	t.Helper()
	if got := status.Code(err); got != want {
		t.Errorf("%s: got %v (%v), want %v", what, got, err, want)
	}
}

// TestGRPC runs gRPC on streams: calls, 1,000 at a time, messages in both directions, deadlines, cancellation and a server that stops.
func TestGRPC(t *testing.T) {
	onNetworks(t, func(t *testing.T, p *pair) {
		s, c := p.grpc(t)
		var all sync.WaitGroup
		for i := range 1000 {
			all.Go(func() {
				want := fmt.Appendf(nil, "call %d", i)
				if got, err := call(soon(t), c, "Unary", want); err != nil || string(got) != string(want) {
					t.Errorf("got %q and error %v, want %q", got, err, want)
				}
			})
		}
		all.Wait()
		testBoth(t, c)
		ctx, cancel := context.WithTimeout(soon(t), 20*time.Millisecond)
		defer cancel()
		_, err := call(ctx, c, "Wait", nil)
		wantCode(t, "a call that takes too long", err, codes.DeadlineExceeded)
		ctx, cancel = context.WithCancel(soon(t))
		time.AfterFunc(10*time.Millisecond, cancel)
		_, err = call(ctx, c, "Wait", nil)
		wantCode(t, "a call that is canceled", err, codes.Canceled)
		waits := make(chan error, 1)
		go func() {
			_, err := call(soon(t), c, "Wait", nil)
			waits <- err
		}()
		if _, err := call(soon(t), c, "Unary", nil); err != nil { // the stream is alive
			t.Errorf("a call: got %v, want no error", err)
		}
		s.Stop()
		wantCode(t, "a call whose server stops", <-waits, codes.Unavailable)
	})
}

// testBoth sends messages of many sizes and receives their echoes, while others are in flight.
func testBoth(t *testing.T, c *grpc.ClientConn) {
	t.Helper()
	s, err := c.NewStream(soon(t), &service.Streams[0], "/Echo/Both")
	if err != nil {
		t.Fatalf("NewStream: got %v, want no error", err)
	}
	const messages = 200
	size := func(i int) int { return i * i * 7 }
	go func() {
		for i := range messages {
			if err := s.SendMsg(wrapperspb.Bytes(make([]byte, size(i)))); err != nil {
				t.Errorf("SendMsg: got %v, want no error", err)
			}
		}
		_ = s.CloseSend()
	}()
	for i := range messages {
		m := &wrapperspb.BytesValue{}
		if err := s.RecvMsg(m); err != nil || len(m.Value) != size(i) {
			t.Fatalf("message %d: got %d bytes and error %v, want %d bytes", i, len(m.Value), err, size(i))
		}
	}
	if err := s.RecvMsg(&wrapperspb.BytesValue{}); err != io.EOF {
		t.Errorf("behind the last message: got %v, want EOF", err)
	}
}
