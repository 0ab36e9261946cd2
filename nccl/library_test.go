package nccl

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestFindNamed: the directory that the variable names is used as it is, and Env names the plugin in it.
func TestFindNamed(t *testing.T) {
	dir := t.TempDir()
	for _, name := range shared().Files {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	var notes bytes.Buffer
	l, err := Find(context.Background(), func(name string) (string, bool) { return dir, name == LibraryVariable }, &notes)
	if err != nil || l.Dir != dir || notes.Len() > 0 {
		t.Fatalf("Find = %v, %v, and it printed %q, want %s", l, err, &notes, dir)
	}
	want := "NCCL_NET_PLUGIN=" + filepath.Join(dir, "libnccl-net-ibverbx.so") + " NCCL_NET_PLUGIN_REF_COUNT=1 NCCL_NET=ibverbx"
	if got := strings.Join(l.Env(), " "); got != want {
		t.Errorf("Env = %q, want %q", got, want)
	}
}

// TestCheck: an illegal value is an error with the variable, the value and the legal ones.
func TestCheck(t *testing.T) {
	for name, values := range map[string]string{
		"IBVERBX_ADDR": "10.0.0.1,host 0.0.0.0 fe80::1%eth0 1.1.1.1,1.1.1.2,1.1.1.3,1.1.1.4,1.1.1.5,1.1.1.6,1.1.1.7,1.1.1.8,1.1.1.9", "IBVERBX_LINK": "tcp shm",
		"IBVERBX_LOSS": "100% x -1", "IBVERBX_METRICS": "9400", "IBVERBX_NCCL_STATS": "maybe", "IBVERBX_NCCL_DEAD_AFTER": "5 1ms 1h",
		"IBVERBX_NCCL_DEADLINE": "0s", "IBVERBX_TCLASS": "256",
	} {
		for value := range strings.SplitSeq(values, " ") {
			err := Check(func(n string) (string, bool) { return value, n == name })
			if err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), value) || !strings.Contains(err.Error(), "want") {
				t.Errorf("%s=%s: got %v, want an error with both", name, value, err)
			}
		}
	}
	good := map[string]string{
		"IBVERBX_ADDR": "10.0.0.1, ::1", "IBVERBX_LINK": "udp", "IBVERBX_LOSS": "0.5%", "IBVERBX_METRICS": ":9400", "IBVERBX_NCCL_STATS": "1",
		"IBVERBX_NCCL_DEAD_AFTER": "30s", "IBVERBX_NCCL_DEADLINE": "2m", "IBVERBX_TOKEN_FILE": "x", "NCCL_SOCKET_IFNAME": "^docker",
	}
	if err := Check(func(n string) (string, bool) { v, ok := good[n]; return v, ok }); err != nil {
		t.Errorf("Check of legal values: got %v, want no error", err)
	}
	for _, name := range Variables() {
		if name != LibraryVariable && good[name] == "" {
			t.Errorf("%s is not tried", name)
		}
	}
}
