package dropin

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"ibverbx/verbs"
)

// LibraryVariable is the environment variable with the library's directory. If the library does not
// exist there, it is built there.
const LibraryVariable = prefix + "LIB"

// Files of the library. The shim looks for the core beside itself. linkFile is an empty library that
// depends on the shim. NCCL opens the name of the development link first, and the dynamic linker matches
// a loaded library by its SONAME.
const (
	shimFile    = "libibverbs.so.1"
	linkFile    = "libibverbs.so"
	coreFile    = "libibverbx-core.so"
	preloadFile = "libibverbx-preload.so"
)

// Library is the drop-in library in the directory Dir.
type Library struct{ Dir string }

// ncclDefaults returns the NCCL settings that software NICs need, each with its reason.
func ncclDefaults() [][3]string {
	return [][3]string{
		{"NCCL_GIN_TYPE", "0", "NCCL 2.28.7 to 2.28.9 crash on NICs other than mlx5 without it"},
		{"NCCL_NET_MERGE_LEVEL", "LOC", "NCCL 2.24 and later lose NICs without a PCI path when they merge them"},
	}
}

// Reason explains a variable that Env sets. It returns an empty string for others.
func Reason(variable string) string {
	if variable == "LD_PRELOAD" {
		return "loads software NICs in place of libibverbs"
	}
	for _, v := range ncclDefaults() {
		if v[0] == variable {
			return v[2]
		}
	}
	return ""
}

// Env returns the variables that make a program use the library, as NAME=value. environ is the
// program's environment otherwise: its preloaded libraries and NCCL settings are kept. It returns
// an error if Dir contains a colon or white space, which LD_PRELOAD cannot express.
func (l Library) Env(environ []string) ([]string, error) {
	if strings.ContainsAny(l.Dir, ": \t\n") {
		return nil, fmt.Errorf("the library is in %q: LD_PRELOAD cannot name a path with spaces or colons; set %s to another directory",
			l.Dir, LibraryVariable)
	}
	preload := filepath.Join(l.Dir, preloadFile) + ":" + filepath.Join(l.Dir, shimFile) + ":" + filepath.Join(l.Dir, linkFile)
	set := map[string]bool{}
	for _, v := range environ {
		name, value, _ := strings.Cut(v, "=")
		if set[name] = true; name == "LD_PRELOAD" && value != "" && value != preload {
			preload += ":" + value
		}
	}
	vars := []string{"LD_PRELOAD=" + preload}
	for _, v := range ncclDefaults() {
		if !set[v[0]] {
			vars = append(vars, v[0]+"="+v[1])
		}
	}
	return vars, nil
}

// Find returns the library: from the directory that lookup returns for LibraryVariable, from beside this
// executable, or from the user's cache. If none exists, Find builds one and reports that on notes. It
// returns ErrCannotBuild if that is impossible, for example because a tool is missing.
func Find(ctx context.Context, lookup func(string) (string, bool), notes io.Writer) (Library, error) {
	if ctx == nil || lookup == nil || notes == nil {
		return Library{}, verbs.Invalidf("the Context, lookup or notes is nil")
	}
	dir, err := shared().Find(ctx, lookup, notes)
	return Library{dir}, err
}
