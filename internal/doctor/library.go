package doctor

import (
	"bytes"
	"io/fs"
	"path"
	"regexp"
	"strings"
)

// soname is the name that programs pass to the dynamic loader.
const soname = "libibverbs.so.1"

// Library is libibverbs as the dynamic loader would find it.
type Library struct {
	Path string `json:"path,omitempty"` // "" if not found

	// Version is the version of rdma-core, "" if the file name does not contain it.
	Version string `json:"version,omitempty"`

	// ProviderABI is the suffix of the providers that it loads, such as rdmav34.
	ProviderABI string `json:"provider_abi,omitempty"`
}

// libraryDirs are the directories that glibc's loader searches after its cache, including those
// of systems with a directory per architecture.
var libraryDirs = []string{
	"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu",
	"/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu",
	"/lib64", "/usr/lib64", "/lib", "/usr/lib",
}

// readLibrary searches libibverbs in the order of ld.so(8): LD_LIBRARY_PATH, the cache, the
// default directories.
func (e *exam) readLibrary() {
	e.Library.Path = e.findLibrary(soname)
	if e.Library.Path == "" {
		return
	}
	// libibverbs.so.1 -> libibverbs.so.1.14.44.0: the ABI is 1.14, rdma-core is 44.0.
	file := e.link(e.Library.Path)
	if file == "" {
		file = path.Base(e.Library.Path)
	}
	if rest, ok := strings.CutPrefix(file, soname+"."); ok {
		if _, version, ok := strings.Cut(rest, "."); ok {
			e.Library.Version = version
		}
	}
	if b, err := fs.ReadFile(e.m.Root, name(e.Library.Path)); err == nil {
		if m := providerSuffix.FindSubmatch(b); m != nil {
			e.Library.ProviderABI = string(m[1])
		}
	}
}

// providerSuffix matches the suffix in the names of the providers that the library opens.
var providerSuffix = regexp.MustCompile(`-(rdmav[0-9]+)\.so`)

// findLibrary returns the path of a library, "" if the loader would not find it.
func (e *exam) findLibrary(soname string) string {
	for dir := range strings.SplitSeq(e.m.Env("LD_LIBRARY_PATH"), ":") {
		if p := path.Join(dir, soname); dir != "" && e.exists(p) {
			return p
		}
	}
	if cache, err := fs.ReadFile(e.m.Root, "etc/ld.so.cache"); err == nil {
		for _, p := range cachedPaths(cache, soname) {
			if e.exists(p) {
				return p
			}
		}
	}
	for _, dir := range libraryDirs {
		if p := path.Join(dir, soname); e.exists(p) {
			return p
		}
	}
	return ""
}

// judgeLibrary reports whether programs find libibverbs.
func (e *exam) judgeLibrary() {
	if e.Library.Path == "" {
		e.report("library", Problem, soname+" is not installed",
			"Programs need this library to use RDMA drivers. If it is in an unusual place, set LD_LIBRARY_PATH.",
			e.install("libibverbs1 ibverbs-providers", "libibverbs")...)
		return
	}
	if !e.isELF(e.Library.Path) {
		e.report("library", Problem, e.Library.Path+" is not a shared library",
			"The file that the dynamic loader finds is damaged or not for this system.",
			e.install("--reinstall libibverbs1 ibverbs-providers", "libibverbs")...)
		return
	}
	version := ""
	if e.Library.Version != "" {
		version = " (rdma-core " + e.Library.Version + ")"
	}
	e.ok("library", "%s%s", e.Library.Path, version)
}

// judgeCM reports whether programs that connect by address find their library.
func (e *exam) judgeCM() {
	const soname = "librdmacm.so.1"
	switch p := e.findLibrary(soname); {
	case p != "":
		e.ok("library", "%s: programs can connect by address (rdma_cm); under ibverbx run, they do without kernel modules", p)
	case e.Library.Path != "":
		e.report("library", Note, soname+" is not installed", "Programs that connect by address (rdma_cm) do not start, on hardware or under ibverbx run.",
			e.install("librdmacm1", "librdmacm")...)
	}
}

// isELF reports whether a file is a program or a library. It may also be a linker script, or
// an empty file left by a failed installation.
func (e *exam) isELF(p string) bool {
	f, err := e.m.Root.Open(name(p))
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	var magic [4]byte
	n, _ := f.Read(magic[:])
	return bytes.Equal(magic[:n], []byte("\x7fELF"))
}
