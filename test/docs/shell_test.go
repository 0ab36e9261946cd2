package docs

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"ibverbx/internal/enginetest"
)

// patience bounds each command, and the start and exit of a server. On an idle machine, each takes
// less than a tenth of it.
const patience = 3 * time.Minute

// shell runs the commands of a scenario.
type shell struct {
	t        *testing.T
	scenario scenario
	dir      string
	values   map[string]string // of the words in braces
	addr     string            // of the latest server
	servers  []*server
}

// server is a command that runs until it is stopped.
type server struct {
	line  string
	cmd   *exec.Cmd
	lines chan string
	ended chan struct{} // closed when err is set
	err   error

	mu  sync.Mutex
	out strings.Builder
}

var (
	serves  = regexp.MustCompile(`^exec ibverbx ((perf )?serve|forward) `)
	address = regexp.MustCompile(`(http://)?127\.0\.0\.1:\d+`)
)

// buildTool builds ibverbx and returns its path.
func buildTool(t *testing.T) string {
	t.Helper()
	tool := filepath.Join(t.TempDir(), "ibverbx")
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "build", "-buildvcs=false", "-o", tool, "./cmd/ibverbx")
	cmd.Dir = "../.."
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return tool
}

// TestCommands: the commands of the documentation work as printed. The flags, packages and targets of the others exist.
func TestCommands(t *testing.T) {
	tool := buildTool(t)
	t.Run("exist", func(t *testing.T) {
		t.Parallel()
		checkDocumented(t, tool)
	})
	t.Run("checks", func(t *testing.T) {
		t.Parallel()
		checkChecks(t, tool)
	})
	if runtime.GOOS != "linux" {
		return // software NICs between processes need Linux
	}
	for _, sc := range scenarios() {
		t.Run(sc.name, func(t *testing.T) {
			t.Parallel()
			runScenario(t, tool, sc)
		})
	}
}

func runScenario(t *testing.T, tool string, sc scenario) {
	dir := t.TempDir()
	enginetest.Must(t, os.Symlink(tool, filepath.Join(dir, "ibverbx")))
	enginetest.Must(t, os.WriteFile(filepath.Join(dir, "token"), []byte("a token of a test is not a secret"), 0o600))
	if sc.prepare != nil {
		sc.prepare(t, dir)
	}
	s := &shell{t: t, scenario: sc, dir: dir, values: map[string]string{"{dir}": dir, "{target}": echo(t)}}
	for _, line := range sc.commands {
		s.run(line)
	}
	if sc.check != nil {
		sc.check(t, s)
	}
	for _, x := range slices.Backward(s.servers) {
		x.stop(t)
	}
}

// echo serves connections that return all bytes, and returns its address.
func echo(t *testing.T) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	enginetest.Must(t, err)
	t.Cleanup(func() { enginetest.Must(t, l.Close()) })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				io.Copy(c, c) //nolint:errcheck // the peer compares the bytes
			}()
		}
	}()
	return l.Addr().String()
}

// actual returns a printed command with the replacements of the scenario.
func (s *shell) actual(line string) string {
	line = strings.Replace(line, "go run ./cmd/ibverbx", "ibverbx", 1)
	line = strings.NewReplacer(s.scenario.replace...).Replace(line)
	for name, value := range s.values {
		line = strings.ReplaceAll(line, name, value)
	}
	return strings.TrimPrefix(line, "./")
}

// run runs a command to completion, or starts a server.
func (s *shell) run(line string) {
	s.t.Helper()
	actual := s.actual(line)
	if url, ok := strings.CutPrefix(actual, "curl "); ok {
		fetch(s.t, url)
		return
	}
	if !strings.Contains(actual, "&&") {
		actual = "exec " + actual // signals reach the program itself
	}
	if serves.MatchString(actual) {
		s.start(line, s.command(s.t.Context(), actual))
		return
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	out, err := s.command(ctx, actual).CombinedOutput()
	status := 0
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		status = exit.ExitCode()
	} else if err != nil {
		s.t.Fatalf("%s: %v", line, err)
	}
	if status != 0 && !slices.Contains(s.scenario.statuses, status) {
		s.t.Fatalf("%s (run as %s): exit status %d\n%s", line, actual, status, out)
	}
}

// command returns a command for sh. Go programs do not use the network.
func (s *shell) command(ctx context.Context, line string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "sh", "-c", line)
	cmd.Dir = filepath.Join(s.dir, s.scenario.within)
	cmd.Env = append(os.Environ(), "PATH="+s.dir+":"+os.Getenv("PATH"), "GOPROXY=off", "GOSUMDB=off")
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// start starts a server and waits until it prints its address.
func (s *shell) start(line string, cmd *exec.Cmd) {
	s.t.Helper()
	r, w := io.Pipe()
	cmd.Stdout, cmd.Stderr = w, w
	enginetest.Must(s.t, cmd.Start())
	x := &server{line: line, cmd: cmd, lines: make(chan string, 100), ended: make(chan struct{})}
	go func() {
		defer close(x.ended)
		x.err = errors.Join(cmd.Wait(), w.Close())
	}()
	go x.read(r)
	s.t.Cleanup(func() { <-x.ended }) // the canceled context of the test has killed it
	s.servers = append(s.servers, x)
	late := time.After(patience)
	s.addr, s.values["{metrics}"] = "", ""
	for s.addr == "" || strings.Contains(line, "--metrics") && s.values["{metrics}"] == "" {
		select {
		case out, ok := <-x.lines:
			if !ok {
				<-x.ended
				s.t.Fatalf("%s: %v before it printed its address:\n%s", line, x.err, x.output())
			}
			s.note(out)
		case <-late:
			s.t.Fatalf("%s printed no address:\n%s", line, x.output())
		}
	}
	s.values["{addr}"] = s.addr
}

// note records the addresses printed by a server.
func (s *shell) note(out string) {
	for _, found := range address.FindAllString(out, -1) {
		if of, ok := strings.CutPrefix(found, "http://"); ok {
			s.values["{metrics}"] = of
		} else if found != s.values["{target}"] && s.addr == "" {
			s.addr = found
		}
	}
}

// read passes on a server's first lines, and records all of them.
func (x *server) read(r io.Reader) {
	defer close(x.lines)
	in := bufio.NewScanner(r)
	for in.Scan() {
		x.mu.Lock()
		x.out.WriteString(in.Text() + "\n")
		x.mu.Unlock()
		select {
		case x.lines <- in.Text():
		default: // the address is known already
		}
	}
}

func (x *server) output() string {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.out.String()
}

// stop sends SIGTERM to a server, which must exit with status 0.
func (x *server) stop(t *testing.T) {
	t.Helper()
	if err := x.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Errorf("%s: %v before SIGTERM\n%s", x.line, err, x.output())
	}
	select {
	case <-x.ended:
		if x.err != nil {
			t.Errorf("%s: %v after SIGTERM, want status 0\n%s", x.line, x.err, x.output())
		}
	case <-time.After(patience):
		t.Errorf("%s does not exit after SIGTERM\n%s", x.line, x.output())
	}
}
