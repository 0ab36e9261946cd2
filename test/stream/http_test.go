package stream_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"syscall"
	"testing"
	"time"

	"ibverbx/stream"
)

// web is an HTTP server on a stream and a client for it.
type web struct {
	*http.Client
	server *http.Server
	url    string
}

// serve starts an HTTP server. If two is set, both sides speak HTTP/2 only.
func (p *pair) serve(t *testing.T, two bool, h http.Handler) *web {
	t.Helper()
	l := p.listen(t, "http")
	var protocols http.Protocols
	protocols.SetHTTP1(!two)
	protocols.SetUnencryptedHTTP2(two)
	server := &http.Server{Handler: h, Protocols: &protocols, ReadHeaderTimeout: time.Minute}
	tr := &http.Transport{DialContext: stream.Dialer(p.client), Protocols: &protocols, MaxIdleConnsPerHost: 64}
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() {
		tr.CloseIdleConnections()
		if err := server.Close(); err != nil {
			t.Errorf("Server.Close: got %v, want no error", err)
		}
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("Serve: got %v, want %v", err, http.ErrServerClosed)
		}
	})
	return &web{&http.Client{Transport: tr, Timeout: time.Minute}, server, "http://" + p.server.Addr().String()}
}

// post sends a body and returns the response.
func (w *web) post(t testing.TB, path string, body []byte) []byte {
	t.Helper()
	r, err := w.Post(w.url+path, "application/octet-stream", bytes.NewReader(body))
	if err != nil {
		t.Errorf("Post: got %v, want no error", err)
		return nil
	}
	defer func() { _ = r.Body.Close() }()
	b, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK {
		t.Errorf("Post: got status %d and error %v, want 200", r.StatusCode, err)
	}
	return b
}

// echo responds with the body; on /wait, only after the client has disconnected.
func echo(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/proto":
		_, _ = fmt.Fprint(w, r.Proto)
	case "/wait":
		<-r.Context().Done()
	default:
		_ = http.NewResponseController(w).EnableFullDuplex()
		_, _ = io.Copy(w, r.Body)
	}
}

func testHTTP(t *testing.T, two bool, proto string) {
	onNetworks(t, func(t *testing.T, p *pair) {
		w := p.serve(t, two, http.HandlerFunc(echo))
		if got := string(w.post(t, "/proto", nil)); got != proto {
			t.Errorf("the server speaks %q, want %q", got, proto)
		}
		body := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
		if got := w.post(t, "/", body); !bytes.Equal(got, body) {
			t.Errorf("%d bytes came back that differ from the %d that were sent", len(got), len(body))
		}
		var all sync.WaitGroup
		for i := range 32 {
			all.Go(func() {
				want := fmt.Appendf(nil, "request %d", i)
				for range 4 {
					if got := w.post(t, "/", want); !bytes.Equal(got, want) {
						t.Errorf("got %q, want %q", got, want)
					}
				}
			})
		}
		all.Wait()
		ctx, cancel := context.WithTimeout(soon(t), 20*time.Millisecond)
		defer cancel()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.url+"/wait", nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Do(req); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a request that is never answered: got %v, want %v", err, context.DeadlineExceeded)
		}
	})
}

// TestHTTP1 and TestHTTP2 run net/http on streams.
func TestHTTP1(t *testing.T) { testHTTP(t, false, "HTTP/1.1") }
func TestHTTP2(t *testing.T) { testHTTP(t, true, "HTTP/2.0") }

// TestHTTP10: the server marks the end of a response without a length by closing the stream.
func TestHTTP10(t *testing.T) {
	p := connect(t, networks[0])
	p.serve(t, false, http.HandlerFunc(echo))
	c, err := stream.Dialer(p.client)(soon(t), "", p.server.Addr().String())
	if err != nil {
		t.Fatalf("Dial: got %v, want no error", err)
	}
	defer func() { _ = c.Close() }()
	if _, err := io.WriteString(c, "GET /proto HTTP/1.0\r\n\r\n"); err != nil {
		t.Fatalf("Write: got %v, want no error", err)
	}
	b, err := io.ReadAll(c)
	if err != nil || !bytes.HasSuffix(b, []byte("HTTP/1.0")) {
		t.Errorf("got %q and error %v, want an answer that ends with HTTP/1.0", b, err)
	}
}

// TestTLS runs crypto/tls, and HTTP in it, on streams.
func TestTLS(t *testing.T) {
	p := connect(t, networks[0])
	s := httptest.NewUnstartedServer(http.HandlerFunc(echo))
	_ = s.Listener.Close()
	s.Listener = p.listen(t, "http")
	s.StartTLS()
	defer s.Close()
	roots := s.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs
	tr := &http.Transport{
		DialContext:     stream.Dialer(p.client),
		TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "example.com", MinVersion: tls.VersionTLS13},
	}
	defer tr.CloseIdleConnections()
	w := &web{Client: &http.Client{Transport: tr, Timeout: time.Minute}, url: "https://" + p.server.Addr().String()}
	if got := string(w.post(t, "/", []byte("secret"))); got != "secret" {
		t.Errorf("got %q, want secret", got)
	}
}

// TestHTTPServerStops: a server that shuts down finishes requests in progress, and then refuses new ones.
func TestHTTPServerStops(t *testing.T) {
	p := connect(t, networks[0])
	begun, finish := make(chan struct{}), make(chan struct{})
	w := p.serve(t, false, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		close(begun)
		<-finish
		_, _ = io.WriteString(w, "late")
	}))
	got := make(chan string, 1)
	go func() { got <- string(w.post(t, "/", nil)) }()
	<-begun
	stopped := make(chan error, 1)
	go func() { stopped <- w.server.Shutdown(soon(t)) }()
	for {
		c, err := stream.Dialer(p.client)(soon(t), "", p.server.Addr().String())
		if errors.Is(err, syscall.ECONNREFUSED) {
			break // the service is closed
		}
		if err != nil {
			t.Fatalf("Dial: got %v, want %v", err, syscall.ECONNREFUSED)
		}
		_ = c.Close()
	}
	close(finish)
	if text := <-got; text != "late" {
		t.Errorf("got %q, want the answer", text)
	}
	if err := <-stopped; err != nil {
		t.Errorf("Shutdown: got %v, want no error", err)
	}
}
