package browser

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"iter"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
)

// tool is the path of ibverbx, which TestMain builds.
var tool string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "ibverbx-browser")
	if err == nil {
		tool = filepath.Join(dir, "ibverbx")
		build := exec.Command("go", "build", "-o", tool, "./cmd/ibverbx")
		build.Dir = filepath.Join("..", "..")
		build.Stderr = os.Stderr
		err = build.Run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "build ibverbx:", err)
		os.Exit(1)
	}
	status := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(status)
}

// long is the test timeout. It is generous, because the machine may be busy.
const long = 2 * time.Minute

// tab is a page in a browser. It must be free of errors at the end of the test.
type tab struct {
	t   *testing.T
	ctx context.Context

	mu    sync.Mutex
	wrong []string // errors from the console and the network
	asked []string // requested addresses
}

// newBrowser starts Chromium and returns a context for opening pages.
func newBrowser(t *testing.T) context.Context {
	t.Helper()
	path, err := exec.LookPath("chromium")
	if err != nil {
		if os.Getenv("IBVERBX_CI") != "" {
			t.Fatalf("chromium is missing: %v", err)
		}
		t.Skipf("this test needs Debian's chromium: %v", err)
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(path), chromedp.NoSandbox, chromedp.DisableGPU, chromedp.NoFirstRun,
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true), chromedp.Flag("disable-background-networking", true),
		chromedp.WSURLReadTimeout(long), chromedp.WindowSize(1100, 1200))
	ctx, cancel := chromedp.NewExecAllocator(t.Context(), options...)
	t.Cleanup(cancel)
	return ctx
}

// open opens an address in a tab of a browser.
func open(ctx context.Context, t *testing.T, address string) *tab {
	t.Helper()
	p := &tab{t: t}
	var cancel context.CancelFunc
	p.ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	p.do() // starts the browser
	follow(chromedp.Console(p.ctx), func(m chromedp.ConsoleMessage) { p.add(&p.wrong, m.String()+" "+m.URL) })
	follow(chromedp.Events(p.ctx, network.RequestWillBeSent), func(e network.EventRequestWillBeSent) { p.add(&p.asked, e.Request.URL) })
	if _, err := chromedp.Call(p.ctx, network.Enable, network.EnableParams{}); err != nil {
		t.Fatalf("the browser: %v", err)
	}
	p.do(chromedp.Navigate(address))
	return p
}

// follow calls f with every event until the tab is closed.
func follow[E any](events iter.Seq2[E, error], f func(E)) {
	go func() {
		for e, err := range events {
			if err != nil {
				return
			}
			f(e)
		}
	}()
}

// add adds a line to a list of p.
func (p *tab) add(list *[]string, line string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	*list = append(*list, line)
}

// do drives the tab.
func (p *tab) do(actions ...chromedp.Action[chromedp.Void]) {
	p.t.Helper()
	if err := chromedp.Do(p.ctx, actions...); err != nil {
		p.t.Fatalf("the browser: %v; it said %q", err, p.complaints())
	}
}

// waitFor waits until an expression of JavaScript is true.
func (p *tab) waitFor(what, expression string) {
	p.t.Helper()
	if err := chromedp.Do(p.ctx, chromedp.Poll[chromedp.Void](expression, chromedp.WithPollingTimeout(long))); err != nil {
		text, _ := chromedp.Run(p.ctx, chromedp.Text("body"))
		p.t.Fatalf("waiting for %s: %v; it said %q and shows\n%s", what, err, p.complaints(), text)
	}
}

func (p *tab) complaints() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string(nil), p.wrong...)
}

// clean checks that the page reported no errors and requested resources only from its own server.
func (p *tab) clean(origin string) {
	p.t.Helper()
	if wrong := p.complaints(); len(wrong) > 0 {
		p.t.Errorf("the page complained: %q, want nothing", wrong)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, a := range p.asked {
		if !strings.HasPrefix(a, origin) && !strings.HasPrefix(a, "data:") {
			p.t.Errorf("the page asked for %s, want only %s", a, origin)
		}
	}
}

// shoot writes a screenshot of the whole page to the directory in IBVERBX_TEST_SCREENSHOTS, if set.
func (p *tab) shoot(name string) {
	p.t.Helper()
	dir := os.Getenv("IBVERBX_TEST_SCREENSHOTS")
	if dir == "" {
		return
	}
	png, err := chromedp.Run(p.ctx, chromedp.FullScreenshot(100))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, name+".png"), png, 0o644)
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

// program is an ibverbx that serves a page.
type program struct {
	cmd     *exec.Cmd
	address string
	stdout  bytes.Buffer
	ended   chan error
}

// begin starts ibverbx and returns it with the address of its page.
func begin(t *testing.T, args ...string) *program {
	t.Helper()
	p := &program{cmd: exec.Command(tool, args...), ended: make(chan error, 1)}
	p.cmd.Stdout = &p.stdout
	pipe, err := p.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.cmd.Process.Kill() })
	lines := bufio.NewScanner(pipe)
	for p.address == "" && lines.Scan() {
		p.address = regexp.MustCompile(`http://127\.0\.0\.1:\d+/\w+/`).FindString(lines.Text())
	}
	if p.address == "" {
		t.Fatalf("ibverbx %s printed no address", strings.Join(args, " "))
	}
	go func() {
		for lines.Scan() {
			continue
		}
		p.ended <- p.cmd.Wait()
	}()
	return p
}

// origin returns the page's origin, without its secret.
func (p *program) origin() string {
	return p.address[:strings.LastIndex(p.address[:len(p.address)-1], "/")]
}

// Expressions of JavaScript on the page.
func rateOf(rail int) string {
	return fmt.Sprintf(`parseFloat(document.querySelector("#rail%d .rate").textContent)`, rail)
}

func statusOf(rail int, text string) string {
	return fmt.Sprintf(`document.querySelector("#rail%d p").textContent.startsWith(%q)`, rail, text)
}

// ready is true when the page has rails.
const ready = `!!document.querySelector("#rail1 .rate")`

// bothUp is true when both rails carry data without a fault.
func bothUp() string {
	return ready + " && " + rateOf(0) + " > 0 && " + rateOf(1) + " > 0 && " + statusOf(1, "up,") + ` && !document.querySelector("[aria-pressed=true]")`
}

// press presses keys one after the other.
func (p *tab) press(keys ...string) {
	p.t.Helper()
	for _, k := range keys {
		p.do(chromedp.KeyEvent(k))
	}
}

// TestDemoPage: a viewer pulls a cable by mouse, plugs it in by keyboard, and turns the other faults on. The
// other rail continues, without errors on the page.
func TestDemoPage(t *testing.T) {
	demo := begin(t, "demo", "--web")
	p := open(newBrowser(t), t, demo.address)
	p.waitFor("both rails", bothUp())
	p.shoot("demo-up")

	p.do(chromedp.Click(`#rail1 button[data-action="pulled"]`))
	p.waitFor("rail 1 at zero and rail 0 at work", rateOf(1)+" === 0 && "+statusOf(1, "down, pulled,")+" && "+rateOf(0)+" > 0")
	p.do(chromedp.Evaluate[chromedp.Void](`window.before = samples.at(-1).messages`))
	p.waitFor("more messages over rail 0", `samples.at(-1).messages > window.before && samples.at(-1).rails[1].bytes_per_second === 0`)
	p.waitFor("the event", `document.querySelector("#events").textContent.includes("the cable of rail 1 is pulled")`)
	p.waitFor("the picture of the cut", `!!document.querySelector("#topology .cut")`)
	p.shoot("demo-pulled")
	p.press("2", "p") // the button is a toggle
	p.waitFor("rail 1 at work", bothUp())

	p.press("2", "s")
	p.waitFor("rail 1 slow", rateOf(1)+" < 26 && "+statusOf(1, "up, slow,"))
	p.press("s")
	p.waitFor("rail 1 at full speed", bothUp())
	p.press("d")
	p.waitFor("rail 1 delayed", statusOf(1, "up, delayed,")+` && document.querySelector("#totals").textContent.includes("Latency")`)
	p.press("d")
	p.press("1", kb.Tab, " ") // the second button of rail 0
	p.waitFor("rail 0 loses packets", `samples.at(-1).rails[0].retransmits > 3 && document.querySelector('#rail0 [data-action="lossy"]').getAttribute("aria-pressed") === "true"`)
	p.press(" ")
	p.waitFor("both rails", bothUp())
	// A reconnected stream sends everything again, and the page is rebuilt.
	p.do(chromedp.Evaluate[chromedp.Void](`stream.dispatchEvent(new MessageEvent("view", { data: JSON.stringify({ setup, samples, events }) }))`))
	p.waitFor("the focus where it was", `document.activeElement.dataset.rail === "0" && document.activeElement.dataset.action === "lossy"`)

	dark := emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: "dark"}}}
	if _, err := chromedp.Call(p.ctx, emulation.SetEmulatedMedia, dark); err != nil {
		t.Fatal(err)
	}
	p.waitFor("a dark page", `getComputedStyle(document.body).backgroundColor === "rgb(18, 23, 29)"`)
	p.shoot("demo-dark")
	p.do(chromedp.EmulateViewport(390, 844))
	p.waitFor("a page that fits a narrow screen", `document.documentElement.scrollWidth <= 390`)
	p.shoot("demo-narrow")

	if err := demo.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	p.waitFor("the end", `document.querySelector("#state").textContent === "ended" && document.querySelector("#events").textContent.includes("without an error")`)
	p.clean(demo.origin())
	if err := <-demo.ended; err != nil {
		t.Errorf("ibverbx demo --web: got %v after Ctrl-C, want status 0", err)
	}
	if out := strings.Join(strings.Fields(demo.stdout.String()), " "); !strings.Contains(out, "byte by byte, without an error.") {
		t.Errorf("ibverbx demo --web printed %q, want that all bytes were right", out)
	}
}

// TestOtherOrigin: a page of another origin that knows the address can neither press a button nor read the stream.
func TestOtherOrigin(t *testing.T) {
	demo := begin(t, "demo", "--web")
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, `<script>
			const body = JSON.stringify({ rail: 1, action: "pulled", on: true });
			Promise.allSettled([
				fetch(%[1]q + "act", { method: "POST", mode: "no-cors", body }),
				fetch(%[1]q + "act", { method: "POST", headers: { "Content-Type": "application/json" }, body }),
				fetch(%[1]q + "stream").then((r) => r.text()),
			]).then((results) => { window.results = results.map((r) => r.status); });
		</script>`, demo.address)
	}))
	defer other.Close()
	browser := newBrowser(t)
	p := open(browser, t, demo.address)
	p.waitFor("both rails", bothUp())
	evil := open(p.ctx, t, other.URL)
	// The first is sent, but its response cannot be read. The others are blocked.
	evil.waitFor("what came of it", `JSON.stringify(window.results) === '["fulfilled","rejected","rejected"]'`)
	p.do(chromedp.Evaluate[chromedp.Void](`window.before = samples.at(-1).at`))
	p.waitFor("later samples", `samples.at(-1).at > window.before + 0.5`)
	p.waitFor("both rails, still", bothUp())
	p.waitFor("no event", `!document.querySelector("#events").textContent.includes("pulled")`)
	p.clean(demo.origin())
}

// TestPerfPage: the page of a running test shows its rails without buttons, and then the outcome.
func TestPerfPage(t *testing.T) {
	test := begin(t, "perf", "--web", "-s", "1M", "-D", "600", "--provider", "softnic", "--interval", "100ms")
	p := open(newBrowser(t), t, test.address)
	p.waitFor("both rails", bothUp()+` && !document.querySelector("button") && document.title === "ibverbx perf: RDMA_Write BW Test"`)
	p.waitFor("lanes", `document.querySelectorAll("#rail0 .lanes li").length === 4`)
	p.shoot("perf")
	if err := test.cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	p.waitFor("the end", `document.querySelector("#state").textContent === "ended" && document.querySelector("#events").textContent.includes("interrupted. Verdict: ")`)
	p.clean(test.origin())
	<-test.ended
}

// TestReports: the files of perf --html open without errors or network requests. Charts have curves and bars.
func TestReports(t *testing.T) {
	browser := newBrowser(t)
	for _, tt := range []struct {
		name, args string
		want       string // an expression that is true on the page
	}{
		{"report-bw", "perf -s 64K,1M,4M -D 1", `document.querySelectorAll("svg").length === 2 && document.querySelectorAll("path.curve").length === 4`},
		{"report-lat", "perf --lat -s 8,64K -D 1", `document.querySelectorAll("svg").length === 5 && document.querySelectorAll("rect.bar").length > 10`},
		{"report-kill", "perf --kill-rail 1", `document.querySelectorAll("line.mark.bad").length === 1`},
	} {
		file := filepath.Join(t.TempDir(), tt.name+".html")
		args := append(strings.Fields(tt.args), "--provider", "softnic", "--html", file)
		if out, err := exec.Command(tool, args...).CombinedOutput(); err != nil {
			t.Fatalf("ibverbx %s: %v, %s", strings.Join(args, " "), err, out)
		}
		p := open(browser, t, "file://"+file)
		p.waitFor(tt.name, tt.want+` && document.documentElement.scrollWidth <= innerWidth`)
		p.shoot(tt.name)
		p.clean("file://" + file)
	}
}
