package monitor

import (
	"context"
	"crypto/rand"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"time"
)

//go:embed page
var pageFiles embed.FS

// Server serves a Record as a web page on a loopback address. The URL contains a secret, so that
// neither other users of the host nor pages of other origins can read the Record or act. Create it
// with Listen.
type Server struct {
	// Record is the Record to serve. Set it before Serve.
	Record *Record
	// Act turns an action on a rail on or off, at a viewer's request. Errors are shown to the
	// viewer. It must be safe for concurrent use. Nil disables actions.
	Act func(rail int, action string, on bool) error

	listener net.Listener
	secret   string
}

// Listen opens a free loopback port.
func Listen() (*Server, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listen on 127.0.0.1 for the page: %w", err)
	}
	return &Server{listener: l, secret: rand.Text()}, nil
}

// Address returns the URL of the page.
func (s *Server) Address() string { return fmt.Sprintf("http://%s/%s/", s.listener.Addr(), s.secret) }

// Close closes the port if Serve was not called.
func (s *Server) Close() error { return s.listener.Close() }

// shutdownTimeout is the time viewers have to fetch the last updates before Serve returns.
const shutdownTimeout = time.Second

// Serve serves viewers until ctx is done.
func (s *Server) Serve(ctx context.Context) error {
	h := &http.Server{Handler: s.handler(), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10}
	ended := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() {
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
		defer cancel()
		if h.Shutdown(last) != nil {
			_ = h.Close()
		}
		ended <- nil
	})
	err := h.Serve(s.listener)
	if !stop() {
		return <-ended
	}
	return err
}

// handler serves the page, its event stream and its actions under the secret path.
func (s *Server) handler() http.Handler {
	files, _ := fs.Sub(pageFiles, "page") // the name is valid
	mux := http.NewServeMux()
	root := "/" + s.secret + "/"
	mux.Handle("GET "+root, http.StripPrefix(root, http.FileServerFS(files)))
	mux.HandleFunc("GET "+root+"stream", s.stream)
	mux.HandleFunc("POST "+root+"act", s.act)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		head := w.Header()
		head.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "+
			"base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
		head.Set("X-Content-Type-Options", "nosniff")
		head.Set("Referrer-Policy", "no-referrer")
		head.Set("Cache-Control", "no-store")
		if own := s.listener.Addr().String(); r.Host != own || !sameOrigin(r, own) {
			http.Error(w, "this page is for "+own+" only", http.StatusForbidden)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// sameOrigin reports whether r is not from a page of another origin. Programs other than browsers
// send neither header.
func sameOrigin(r *http.Request, own string) bool {
	origin, site := r.Header.Get("Origin"), r.Header.Get("Sec-Fetch-Site")
	return (origin == "" || origin == "http://"+own) && (site == "" || site == "same-origin" || site == "none")
}

// viewSamples is the number of samples in a viewer's initial state.
const viewSamples = 600

// stream sends the state of the Record and all updates as server-sent events.
func (s *Server) stream(w http.ResponseWriter, r *http.Request) {
	now, next, stop := s.Record.watch()
	defer stop()
	now.Samples = now.Samples[max(len(now.Samples)-viewSamples, 0):]
	w.Header().Set("Content-Type", "text/event-stream")
	out := http.NewResponseController(w)
	send := func(name string, v any) error {
		b, err := json.Marshal(v)
		if err == nil {
			_, err = fmt.Fprintf(w, "event: %s\ndata: %s\n\n", name, b)
		}
		return errors.Join(err, out.Flush())
	}
	for err := send("view", now); err == nil; {
		select {
		case u, ok := <-next:
			if !ok {
				return
			}
			err = send("update", u)
		case <-r.Context().Done():
			return
		}
	}
}

// maxCommand is the maximum length of a command in bytes.
const maxCommand = 1 << 10

// viewerCommand is a viewer's request for an action.
type viewerCommand struct {
	Rail   int    `json:"rail"`
	Action string `json:"action"`
	On     bool   `json:"on"`
}

// decodeCommand decodes a command strictly.
func decodeCommand(r io.Reader) (c viewerCommand, err error) {
	d := json.NewDecoder(r)
	d.DisallowUnknownFields()
	if err := d.Decode(&c); err != nil {
		return c, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return c, errors.New("more than one object")
	}
	return c, nil
}

// act executes a viewer's command.
func (s *Server) act(w http.ResponseWriter, r *http.Request) {
	if s.Act == nil {
		http.Error(w, "actions are disabled", http.StatusNotFound)
		return
	}
	c, err := decodeCommand(http.MaxBytesReader(w, r.Body, maxCommand))
	if err == nil {
		err = s.Act(c.Rail, c.Action, c.On)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.WriteHeader(http.StatusNoContent)
}
