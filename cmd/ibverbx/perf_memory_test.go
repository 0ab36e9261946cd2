package main

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"ibverbx/cuda"
	"ibverbx/cuda/cudatest"
	"ibverbx/internal/enginetest"
	"ibverbx/internal/perf/measure"
	"ibverbx/internal/testslice"
)

// withGPUs returns a command for a separate process with two GPUs.
func withGPUs(t *testing.T, env []string, args ...string) *exec.Cmd {
	t.Helper()
	if !cudatest.Real() {
		if _, err := cuda.Devices(); err != nil && strings.Contains(err.Error(), "built without cgo") {
			t.Skipf("needs cgo for the stand-in of libcuda: %v", err)
		}
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), env...)
	return cmd
}

// onGPUs runs a command in a process with two GPUs and returns its output. The command must succeed.
func onGPUs(t *testing.T, args ...string) string {
	t.Helper()
	return onGPUsOf(t, cudatest.Environ(t, 2), args...)
}

// onGPUsOf is onGPUs with an environment that describes the GPUs.
func onGPUsOf(t *testing.T, env []string, args ...string) string {
	t.Helper()
	p := start(t, withGPUs(t, env, args...))
	if status := p.end(); status != exitOK {
		t.Fatalf("ibverbx %s: status %d, stderr %q", strings.Join(args, " "), status, p.said)
	}
	return p.stdout.String()
}

// TestPerfMemoryGolden: the table names the memory and the copy used as baseline.
func TestPerfMemoryGolden(t *testing.T) {
	for memory, shown := range map[string]string{"cuda:0": "cuda:0", "host,cuda:0": "host -> cuda:0", "cuda:0,host": "cuda:0 -> host", "cuda:0,cuda:0": "cuda:0"} {
		args := []string{"perf", "--provider", "softnic", "--memory", memory, "-s", "8,64K", "-n", "128", "-q", "1"}
		wantTable(t, onGPUs(t, args...), `RDMA_Write BW Test: 1 QP of RC, softnic over memory
MTU 4096, TX depth 128, memory `+shown+`
 #bytes #iterations BW peak[MiB/sec] BW average[MiB/sec] MsgRate[Mpps] ratio
 N N N N N N
 N N N N N N
 rail N N % N MiB soft0 -> soft1
 GPU copy at N KiB: N MiB/sec (N GB/s); ratio is BW average to it
 verdict: V
`, args...)
	}
	if out := onGPUs(t, "perf", "--provider", "softnic", "--memory", "cuda:0", "-v", "-n", "10", "-s", "8"); !strings.Contains(out, "\n Memory          : cuda:0\n") {
		t.Errorf("-v does not name the memory:\n%s", out)
	}
}

// TestPerfMemoryOperations: every operation that supports GPU memory runs, with every byte verified.
func TestPerfMemoryOperations(t *testing.T) {
	for _, args := range testslice.Pick(t, []string{
		"write", "write --imm --scheme spray", "read -b", "send", "send -c UD -s 64", "write -c UC -s 8K", "write --transport uc -s 100K -n 5",
		"write --lat", "send --lat", "atomic --memory cuda:0,host",
	}) {
		t.Run(args, func(t *testing.T) {
			words := append([]string{"perf", "--provider", "softnic", "--memory", "cuda:0", "--json", "--check"}, strings.Fields(args)...)
			if !slices.Contains(words, "-n") {
				words = append(words, "-n", "50")
			}
			if !slices.Contains(words, "-s") && !slices.Contains(words, "atomic") {
				words = append(words, "-s", "64,64K")
			}
			var r measure.Report
			if err := json.Unmarshal([]byte(onGPUs(t, words...)), &r); err != nil || r.Run.Options.Memory[0].String() != "cuda:0" || len(r.Results) == 0 || !r.Checked {
				t.Errorf("%v, memory %v and %d results, want cuda:0 and some", err, r.Run.Options.Memory, len(r.Results))
			}
		})
	}
}

// TestPerfMemoryRefused: invalid combinations are rejected.
func TestPerfMemoryRefused(t *testing.T) {
	const token = " --token-file t"
	for args, want := range map[string]string{
		"perf --memory gpu":                             "use host, or a GPU such as cuda:0",
		"perf --memory cuda":                            "use host, or a GPU such as cuda:0",
		"perf --memory cuda:-1":                         "use host, or a GPU such as cuda:0",
		"perf --memory cuda:01":                         "use host, or a GPU such as cuda:0",
		"perf --memory host,":                           "use host, or a GPU such as cuda:0",
		"perf --memory host,host,host":                  "at most two places",
		"perf atomic --memory cuda:0":                   "no atomics on memory of a device; use --memory host at the target",
		"perf atomic -b --memory cuda:0,host":           "no atomics on memory of a device",
		"perf write node1 --memory host,cuda:0" + token: "give each of two processes its own",
		"perf serve --memory cuda:0,host" + token:       "give each of two processes its own",
	} {
		refused(t, args, "--memory", want)
	}
}

// TestPerfMemoryWithoutGPU: the error for a missing driver or GPU gives the cause and the fix.
func TestPerfMemoryWithoutGPU(t *testing.T) {
	dir := t.TempDir()
	enginetest.WantOK(t, "WriteFile", os.WriteFile(filepath.Join(dir, cuda.DefaultLibrary), []byte("no library"), 0o600))
	for memory, want := range map[string][]string{
		"cuda:0": {"ibverbx: --memory cuda:0: load libcuda: not supported: no CUDA driver: ", "install the NVIDIA driver"},
		"cuda:7": {"ibverbx: --memory cuda:7: open on cuda:7: not found: no GPU 7; the driver has "},
	} {
		env := []string{"LD_LIBRARY_PATH=" + dir}
		if memory != "cuda:0" {
			env = cudatest.Environ(t, 2)
		}
		for _, args := range []string{"", "--json", "serve --token-file " + newToken(t, "a secret of more than 16 bytes")} {
			p := start(t, withGPUs(t, env, append(append([]string{"perf"}, strings.Fields(args)...), "--memory", memory)...))
			status := p.end()
			if said := strings.Join(p.said, "\n"); status != exitFailure || p.stdout.String() != "" {
				t.Errorf("perf --memory %s %s: status %d, prints %q and says %q; want %d and nothing", memory, args, status, p.stdout.String(), said, exitFailure)
			} else {
				says(t, said, want...)
			}
		}
	}
}

// TestPerfMemoryProcesses: each process has its own --memory, on every link, and both report both. Over shared memory
// the client's GPU maps the server's memory.
func TestPerfMemoryProcesses(t *testing.T) {
	token := newToken(t, "a secret of more than 16 bytes")
	for link, list := range map[string][][2]string{
		"shm": {{"cuda:0", "cuda:0"}, {"host", "cuda:0"}}, "udp": {{"cuda:0", "cuda:0"}, {"cuda:0", "host"}},
	} {
		for _, memory := range list {
			t.Run(link+"/"+memory[0]+"/"+memory[1], func(t *testing.T) {
				server := start(t, withGPUs(t, cudatest.Environ(t, 1), "perf", "serve", "--once", "--listen", "127.0.0.1:0", "--token-file", token, "--memory", memory[1], "--json"))
				_, addr, _ := strings.Cut(server.line("listening on "), "listening on ")
				env := cudatest.Environ(t, 2)
				out := onGPUsOf(t, env, "perf", "read", addr, "--token-file", token, "--memory", memory[0], "--link", link, "-s", "64,100K", "-n", "50", "--check", "--json")
				if status := server.end(); status != exitOK {
					t.Fatalf("the server ends with %d: %q", status, server.said)
				}
				if want := link == "shm" && memory[0] == "cuda:0"; !cudatest.Real() && cudatest.Opened(t, env) > 0 != want {
					t.Errorf("the client's GPU opens memory of the server: %v, want %v", !want, want)
				}
				for who, text := range map[string]string{"client": out, "server": server.stdout.String()} {
					var r measure.Report
					err := json.Unmarshal([]byte(text), &r)
					if got := [2]string{r.Run.Options.Memory[0].String(), r.Run.Options.Memory[1].String()}; err != nil || got != memory || r.Link != link || len(r.Results) != 2 {
						t.Errorf("the %s reports %v, link %q, %d results and %v; want %v, %q and 2", who, got, r.Link, len(r.Results), err, memory, link)
					}
				}
			})
		}
	}
}

// TestPerfMemoryRefusedByServer: a client gets an error if the server's memory does not support the requested test.
func TestPerfMemoryRefusedByServer(t *testing.T) {
	token := newToken(t, "a secret of more than 16 bytes")
	server := start(t, withGPUs(t, cudatest.Environ(t, 1), "perf", "serve", "--once", "--listen", "127.0.0.1:0", "--token-file", token, "--memory", "cuda:0"))
	_, addr, _ := strings.Cut(server.line("listening on "), "listening on ")
	client := begin(t, "perf", "atomic", addr, "--token-file", token)
	if status := client.end(); status == exitOK || !strings.Contains(strings.Join(client.said, " "), "no atomics on memory of a device") {
		t.Errorf("the client ends with %d and says %q, want the reason of the server", status, client.said)
	}
	if status := server.end(); status == exitOK {
		t.Error("the server ends with success, want its refusal")
	}
}

// TestCompleteMemory: shell completion of --memory offers the local GPUs.
func TestCompleteMemory(t *testing.T) {
	out := onGPUs(t, "__complete", "perf", "--memory", "")
	if !strings.HasPrefix(out, "host\ncuda:0\t") {
		t.Errorf("--memory is completed with %q, want host and cuda:0", out)
	}
}

// TestGPUsOfDriver: devices and doctor query the driver, and doctor exports GPU memory.
func TestGPUsOfDriver(t *testing.T) {
	var list struct {
		GPUs []gpu `json:"gpus"`
	}
	err := json.Unmarshal([]byte(onGPUs(t, "devices", "--json")), &list)
	if err != nil || len(list.GPUs) == 0 || list.GPUs[0].Name != "cuda:0" || !list.GPUs[0].DMABuf || list.GPUs[0].Memory == 0 {
		t.Errorf("devices: %+v and %v, want cuda:0 with dma-buf", list.GPUs, err)
	}
	p := start(t, withGPUs(t, cudatest.Environ(t, 1), "doctor"))
	_ = p.end() // other checks may fail on this machine
	line := lineWith(strings.ReplaceAll(p.stdout.String(), "\n", " "), "cuda:0: ")
	if !strings.Contains(strings.Join(strings.Fields(line), " "), "dma-buf export works") {
		t.Errorf("doctor says %q, want that dma-buf export works", p.stdout.String())
	}
}

// TestExportDMABuf: a missing GPU is not reported as an export failure.
func TestExportDMABuf(t *testing.T) {
	if err := exportDMABuf(1000); !errors.Is(err, cuda.ErrNoDriver) && !errors.Is(err, cuda.ErrNoDevice) || errors.Is(err, errExport) {
		t.Errorf("exportDMABuf of a GPU that is not there = %v, want ErrNoDriver or ErrNoDevice", err)
	}
}
