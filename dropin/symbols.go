package dropin

import (
	"debug/elf"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
)

// symbol is a function or a variable that libibverbs exports.
type symbol struct {
	name, version string
	// size is the size of a variable in bytes, 0 for a function.
	size uint64
	// old is set if new programs are linked to another version.
	old bool
}

// exported returns the versioned symbols of a shared library.
func exported(name string) (found []symbol, err error) {
	f, err := elf.Open(name)
	if err != nil {
		return nil, fmt.Errorf("%s is no shared library: %w", name, err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	symbols, err := f.DynamicSymbols()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	for _, s := range symbols {
		if s.Section == elf.SHN_UNDEF || !s.HasVersion || s.Version == "" {
			continue
		}
		v := symbol{name: s.Name, version: s.Version, old: s.VersionIndex.IsHidden()}
		typ := elf.ST_TYPE(s.Info)
		if typ == elf.STT_OBJECT {
			v.size = s.Size
		}
		if typ == elf.STT_FUNC || v.size > 0 { // otherwise it is the name of a version
			found = append(found, v)
		}
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%s exports no versioned symbols: this rdma-core is not supported", name)
	}
	return found, nil
}

// defined returns the global functions of an object file.
func defined(name string) (found map[string]bool, err error) {
	f, err := elf.Open(name)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	symbols, err := f.Symbols()
	if err != nil {
		return nil, err
	}
	found = map[string]bool{}
	for _, s := range symbols {
		if s.Section != elf.SHN_UNDEF && elf.ST_TYPE(s.Info) == elf.STT_FUNC && elf.ST_BIND(s.Info) == elf.STB_GLOBAL {
			found[s.Name] = true
		}
	}
	return found, nil
}

// ownVersion is the symbol version of the functions between the parts of the library.
const ownVersion = "IBVERBX"

// pointers are the name prefixes of functions that return a pointer. The others return an int.
var pointers = []string{"ibv_import_", "ibv_alloc_", "ibv_create_", "ibv_open_", "ibv_reg_", "ibv_get_device_", "verbs_open_", "_verbs_init_"}

// stubs returns C source for the symbols of a library that the shim lacks, and a version script for both. Drivers and programs linked with
// BIND_NOW need every symbol, including the library's private ones, which are never called. Stubs fail with ENOSYS, as does the interface
// from before version 1.1, which had other structures.
func stubs(library []symbol, shim map[string]bool) (source, versions string) {
	var c strings.Builder
	c.WriteString("#include <errno.h>\n#include <stddef.h>\n")
	names := map[string][]string{} // by version
	for i, s := range library {
		if !strings.HasPrefix(s.version, "IBVERBS_") {
			continue
		}
		if !s.old {
			names[s.version] = append(names[s.version], s.name)
		} else if names[s.version] == nil {
			names[s.version] = []string{}
		}
		if !s.old && shim[s.name] {
			continue
		}
		name := s.name
		if s.old {
			name = fmt.Sprintf("ibx_old_%d", i)
			fmt.Fprintf(&c, "__asm__(\".symver %s,%s@%s\");\n", name, s.name, s.version)
		}
		if s.size > 0 {
			fmt.Fprintf(&c, "char %s[%d] __attribute__((aligned(16)));\n", name, s.size)
		} else if slices.ContainsFunc(pointers, func(p string) bool { return strings.HasPrefix(s.name, p) }) {
			fmt.Fprintf(&c, "void *%s(void);\nvoid *%s(void) { errno = ENOSYS; return NULL; }\n", name, name)
		} else {
			fmt.Fprintf(&c, "int %s(void);\nint %s(void) { errno = ENOSYS; return ENOSYS; }\n", name, name)
		}
	}
	var m strings.Builder
	for i, version := range slices.Sorted(maps.Keys(names)) {
		fmt.Fprintf(&m, "%s {\n", version)
		if len(names[version]) > 0 {
			fmt.Fprintf(&m, "global:\n\t%s;\n", strings.Join(names[version], ";\n\t"))
		}
		if i == 0 {
			m.WriteString("local:\n\t*;\n")
		}
		m.WriteString("};\n")
	}
	fmt.Fprintf(&m, "%s {\nglobal:\n\tibx_path;\n\tibx_cm_open;\n\tibx_cm_write;\n\tibx_cm_close;\n};\n", ownVersion) // for preload
	return c.String(), m.String()
}

// writeStubs writes the stubs of a library for an object file.

func writeStubs(library, object, source, versions string) error {
	want, err := exported(library)
	if err != nil {
		return err
	}
	have, err := defined(object)
	if err != nil {
		return err
	}
	c, m := stubs(want, have)
	if err := os.WriteFile(source, []byte(c), 0o644); err != nil {
		return err
	}
	return os.WriteFile(versions, []byte(m), 0o644)
}
