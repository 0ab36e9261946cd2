package doctor

import (
	"io/fs"
	"path"
	"strconv"
	"strings"
)

// name turns an absolute path into one of the machine's file system.
func name(p string) string {
	if p = strings.TrimPrefix(path.Clean(p), "/"); p != "" {
		return p
	}
	return "."
}

// text returns the contents of a file without white space around them, "" if it cannot
// be read. Files of sysfs that do not apply refuse to be read, so an error says nothing.
func (e *exam) text(p string) string {
	b, err := fs.ReadFile(e.m.Root, name(p))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// number returns the number in a file, in any base that Go writes, 0 if there is none.
func (e *exam) number(p string) int {
	n, err := strconv.ParseInt(e.text(p), 0, 64)
	if err != nil {
		return 0
	}
	return int(n)
}

// list returns the names in a directory, sorted, none if it cannot be read.
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

// exists says whether there is such a file.
func (e *exam) exists(p string) bool {
	_, err := fs.Stat(e.m.Root, name(p))
	return err == nil
}

// link returns the last element of what a symbolic link points to, "" if it is none.
func (e *exam) link(p string) string {
	target, err := fs.ReadLink(e.m.Root, name(p))
	if err != nil {
		return ""
	}
	return path.Base(target)
}
