package doctor

import (
	"io/fs"
	"path"
	"strconv"
	"strings"
)

// name turns an absolute path into one for the machine's file system.
func name(p string) string {
	if p = strings.TrimPrefix(path.Clean(p), "/"); p != "" {
		return p
	}
	return "."
}

// text returns the contents of a file without surrounding white space, "" if it cannot be
// read. Reading a sysfs file that does not apply fails, so errors are ignored.
func (e *exam) text(p string) string {
	b, err := fs.ReadFile(e.m.Root, name(p))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// number returns the number in a file, in any base of Go's syntax, 0 if missing or invalid.
func (e *exam) number(p string) int {
	n, err := strconv.ParseInt(e.text(p), 0, 64)
	if err != nil {
		return 0
	}
	return int(n)
}

// list returns the sorted names in a directory, none if it cannot be read.
func (e *exam) list(p string) []string {
	entries, err := fs.ReadDir(e.m.Root, name(p))
	if err != nil {
		return nil
	}
	var names []string
	for _, d := range entries {
		names = append(names, d.Name())
	}
	return names
}

// exists reports whether a file exists.
func (e *exam) exists(p string) bool {
	_, err := fs.Stat(e.m.Root, name(p))
	return err == nil
}

// link returns the last element of a symbolic link's target, "" if it is not a link.
func (e *exam) link(p string) string {
	target, err := fs.ReadLink(e.m.Root, name(p))
	if err != nil {
		return ""
	}
	return path.Base(target)
}
