// Package nccl finds and builds libnccl-net-ibverbx.so, a network plugin that lets NCCL, and so PyTorch, use all NICs of a host with
// failover. It implements `ibverbx nccl`.
//
//	shim/  the plugin in C: tables for NCCL 2.20 to 2.30, requests, fork handling
//	core/  the Go core behind shim/seam.h, as a shared library with a Go runtime
//	check/ a program that loads the plugin as NCCL does, in two processes
//	internal/transport the core without C
//
// [Find] returns the installed or cached plugin, or builds it. NCCL calls shim/, which calls core/. NCCL's tables (shim/tables.c) and the
// variables in docs/nccl.md are fixed. See docs/nccl.md.
package nccl

import (
	"context"
	"io"
	"path/filepath"
	"slices"

	"ibverbx/internal/sharedlib"
	"ibverbx/nccl/internal/transport"
	"ibverbx/verbs"
)

// LibraryVariable is the environment variable with the plugin's directory. If the plugin does not exist there, it is built there.
const LibraryVariable = "IBVERBX_NCCL_LIB"

// ErrCannotBuild means that the plugin does not exist and cannot be built. The wrapping error names the reason, such as missing tools.
var ErrCannotBuild = sharedlib.ErrCannotBuild

const (
	pluginFile = "libnccl-net-ibverbx.so"
	coreFile   = "libibverbx-nccl.so"
	checkFile  = "ibverbx-nccl-check"
)

// Library is the plugin in the directory Dir.
type Library struct{ Dir string }

// Plugin returns the path of the plugin.
func (l Library) Plugin() string { return filepath.Join(l.Dir, pluginFile) }

// CheckProgram returns the path of the program that checks the plugin.
func (l Library) CheckProgram() string { return filepath.Join(l.Dir, checkFile) }

// Env returns the variables that make NCCL use the plugin, as NAME=value.
func (l Library) Env() []string {
	return []string{
		"NCCL_NET_PLUGIN=" + l.Plugin(),
		"NCCL_NET_PLUGIN_REF_COUNT=1", // NCCL 2.27.3 to 2.29.7 forget the plugin when the last communicator ends
		"NCCL_NET=ibverbx",            // an error instead of a silent fallback
	}
}

// Variables returns the names of the environment variables that the plugin reads, apart from the ones of package settings.
func Variables() []string {
	names := []string{LibraryVariable}
	for _, v := range transport.Variables() {
		names = append(names, v.Name)
	}
	return names
}

// Check returns an error that names the variable if a value of the plugin's settings is illegal.
func Check(lookup func(string) (string, bool)) error {
	if lookup == nil {
		return verbs.Invalidf("lookup is nil: use os.LookupEnv")
	}
	_, err := transport.ReadEnv(lookup)
	return err
}

// Find returns the plugin: from the directory that lookup returns for LibraryVariable, from beside this executable, or from the user's
// cache. If none exists, Find builds one and reports that on notes. It returns ErrCannotBuild if that is impossible.
func Find(ctx context.Context, lookup func(string) (string, bool), notes io.Writer) (Library, error) {
	if ctx == nil || lookup == nil || notes == nil {
		return Library{}, verbs.Invalidf("the Context, lookup or notes is nil")
	}
	dir, err := shared().Find(ctx, lookup, notes)
	return Library{dir}, err
}

// shared describes the plugin.
func shared() *sharedlib.Library {
	return &sharedlib.Library{
		Name: "nccl", Variable: LibraryVariable, Files: []string{pluginFile, coreFile, checkFile}, Source: sharedlib.SourceDir(), Compile: compile,
	}
}

// compile builds the files of the plugin in a directory.
func compile(ctx context.Context, t *sharedlib.Tools, dir string) error {
	at := func(name string) string { return filepath.Join(dir, name) }
	sources, err := filepath.Glob(filepath.Join(t.Source, "shim", "*.c"))
	if err != nil {
		return err
	}
	link := []string{"-shared", "-fvisibility=hidden", "-Wl,-soname," + pluginFile, "-Wl,-z,nodelete", "-o", at(pluginFile), t.Loader()}
	if err := t.Run(ctx, dir, t.CC, slices.Concat(t.Flags(), link, sources, []string{"-ldl"})...); err != nil {
		return err
	}
	programs, err := filepath.Glob(filepath.Join(t.Source, "check", "*.c"))
	if err != nil {
		return err
	}
	if err := t.Run(ctx, dir, t.CC, slices.Concat(t.Flags(), []string{"-o", at(checkFile)}, programs, []string{"-ldl"})...); err != nil {
		return err
	}
	return t.Core(ctx, at(coreFile))
}
