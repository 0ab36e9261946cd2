//go:build linux

package nccl_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// tables are the versions of NCCL's table: its size, the size of its properties, and the calls whose parameters differ.
var tables = []struct {
	version, table, properties                   int
	init, listen, connect, isend, irecv, further string
}{
	{8, 152, 64, "logged", "0, handle, &listener", "0, handle, &comm, NULL", "comm, data, 1, 0, mr, &request", "comm, 1, &data, ints, ints, &mr, &request", ""},
	{9, 160, 104, "logged", "0, handle, &listener", "0, handle, &comm, NULL", "comm, data, n, 0, mr, &request", "comm, 1, &data, &n, ints, &mr, &request", ""},
	{
		10, 160, 104, "logged, NULL", "0, handle, &listener", "0, NULL, handle, &comm, NULL", "comm, data, n, 0, mr, NULL, &request",
		"comm, 1, &data, &n, ints, &mr, NULL, &request", "",
	},
	{
		11, 176, 112, "&ctx, 7, &config, logged, NULL", "ctx, 0, handle, &listener", "ctx, 0, handle, &comm, NULL",
		"comm, data, n, 0, mr, NULL, &request", "comm, 1, &data, &n, ints, &mr, NULL, &request", "finalize",
	},
	{
		12, 176, 128, "&ctx, 7, &config, logged, NULL", "ctx, 0, handle, &listener", "ctx, 0, handle, &comm, NULL",
		"comm, data, n, 0, mr, NULL, &request", "comm, 1, &data, &n, ints, &mr, NULL, &request", "finalize",
	},
}

// user is a program that uses the plugin through NCCL's headers. VERSION, TABLE, PROPERTIES and calls are replaced.
const user = `#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <dlfcn.h>
#include <nccl_net.h>
static_assert(sizeof(ncclNet_vVERSION_t) == TABLE && sizeof(ncclNetProperties_vVERSION_t) == PROPERTIES, "sizes");
OFFSETS
static void logged(ncclDebugLogLevel level, unsigned long flags, const char *file, int line, const char *format, ...) {}
int main(int argc, char **argv)
{
	void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL), *listener = NULL, *ctx = NULL, *comm = NULL, *data = NULL, *mr = NULL, *request = NULL;
	ncclNet_vVERSION_t *net = library ? (ncclNet_vVERSION_t *)dlsym(library, "ncclNetPlugin_vVERSION") : NULL;
	ncclNetProperties_vVERSION_t p;
	char handle[NCCL_NET_HANDLE_MAXSIZE];
	int devices = 0, done = 0, ints[1] = {1};
	size_t n = 1;
	CONFIG
	memset(&p, 0x55, sizeof(p));
	if (!net || net->init(INIT) != ncclSuccess || net->devices(&devices) != ncclSuccess || net->getProperties(0, &p) != ncclSuccess)
		return 1;
	if (argc > 2) { // never: only the parameters are checked
		if (net->connect(CONNECT) || net->accept(listener, &comm, NULL) || net->regMr(comm, data, n, NCCL_PTR_HOST, &mr) || net->isend(ISEND) ||
			net->irecv(IRECV) || net->test(request, &done, ints) || net->iflush(comm, 1, &data, ints, &mr, &request) || net->deregMr(comm, mr) ||
			net->closeSend(comm) || net->closeRecv(comm))
			return 2;
	}
	if (net->listen(LISTEN) != ncclSuccess || net->closeListen(listener) != ncclSuccess)
		return 3;
	FINALIZE
	printf("%s devices=%d name=%s ptr=%d recvs=%d type=%d\n", net->name, devices, p.name, p.ptrSupport, p.maxRecvs, (int)p.netDeviceType);
	return 0;
}
`

// TestHeaders: a program compiled with NCCL's headers uses every table of the plugin that they have. The headers are the installed ones,
// and those in $NCCL_HOME/include. From NCCL 2.27 on they need C++.
func TestHeaders(t *testing.T) {
	l := library(t)
	found := false
	for _, pattern := range []string{
		"/usr/include/nccl_net.h", "/usr/local/include/nccl_net.h", "/usr/lib/python3*/*-packages/nvidia/nccl/include/nccl_net.h",
		"/usr/local/lib/python3*/*-packages/nvidia/nccl/include/nccl_net.h", "/opt/*/lib/python3*/site-packages/nvidia/nccl/include/nccl_net.h",
		os.Getenv("NCCL_HOME") + "/include/nccl_net.h",
	} {
		names, _ := filepath.Glob(pattern)
		for _, name := range names {
			found = true
			t.Run(filepath.Dir(name), func(t *testing.T) { useHeaders(t, filepath.Dir(name), l.Plugin()) })
		}
	}
	if !found {
		t.Skip("nccl_net.h is not installed (Debian: libnccl-dev)")
	}
}

// useHeaders uses all tables of the headers in a directory.
func useHeaders(t *testing.T, include, plugin string) {
	compile := func(text, to string) (string, error) {
		cmd := exec.CommandContext(t.Context(), "c++", "-std=c++17", "-I"+include, "-x", "c++", "-", "-o", to, "-ldl")
		cmd.Stdin = strings.NewReader(text)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := compile("#include <stddef.h>\n#include <nccl_net.h>\nint main() {}", os.DevNull); err != nil {
		t.Fatalf("the headers do not compile: %v\n%s", err, out)
	}
	var tried []int
	for _, v := range tables {
		declared := fmt.Sprintf("#include <stddef.h>\n#include <nccl_net.h>\nncclNet_v%d_t t; ncclNetProperties_v%d_t p;\nint main() {}", v.version, v.version)
		if _, err := compile(declared, os.DevNull); err != nil {
			continue // another release of NCCL
		}
		tried = append(tried, v.version)
		var offsets strings.Builder
		for i, field := range []string{
			"name", "init", "devices", "getProperties", "listen", "connect", "accept", "regMr", "regMrDmaBuf", "deregMr", "isend", "irecv",
			"iflush", "test", "closeSend", "closeRecv", "closeListen", "getDeviceMr", "irecvConsumed",
		} {
			fmt.Fprintf(&offsets, "static_assert(offsetof(ncclNet_v%d_t, %s) == %d, \"%s\");\n", v.version, field, 8*i, field)
		}
		config, finalize := "", ""
		if v.further != "" {
			config = fmt.Sprintf("ncclNetCommConfig_v%d_t config;\n\tmemset(&config, 0xff, sizeof(config));", v.version)
			finalize = "if (net->finalize(ctx) != ncclSuccess)\n\t\treturn 4;"
		}
		text := strings.NewReplacer("VERSION", fmt.Sprint(v.version), "TABLE", fmt.Sprint(v.table), "PROPERTIES", fmt.Sprint(v.properties),
			"OFFSETS", offsets.String(), "INIT", v.init, "LISTEN", v.listen, "CONNECT", v.connect, "ISEND", v.isend, "IRECV", v.irecv,
			"CONFIG", config, "FINALIZE", finalize).Replace(user)
		program := filepath.Join(t.TempDir(), "user")
		if out, err := compile(text, program); err != nil {
			t.Errorf("version %d: %v\n%s", v.version, err, out)
			continue
		}
		cmd := exec.CommandContext(t.Context(), program, plugin)
		cmd.Env = append(os.Environ(), "IBVERBX_ADDR=127.0.0.1")
		out, err := cmd.CombinedOutput()
		if want := "ibverbx devices=1 name=ibverbx ptr=1 recvs=1 type=0\n"; err != nil || string(out) != want {
			t.Errorf("version %d: got %v and %q, want %q", v.version, err, out, want)
		}
	}
	if len(tried) == 0 {
		t.Errorf("%s/nccl_net.h has none of the versions 8 to 12", include)
	}
	t.Logf("%s: versions %v", include, tried)
}
