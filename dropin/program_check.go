package dropin

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"strings"
)

// ErrProgram means that a program cannot use the library.
var ErrProgram = errors.New("this program cannot use the library")

// CheckProgram returns ErrProgram if a program's dynamic linker would not load the library. Scripts
// pass, since their child processes are unknown.
func CheckProgram(path string) error { return checkProgram(path, os.Getuid()) }

// checkProgram is CheckProgram for a user.
func checkProgram(path string, uid int) (err error) {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if info.Mode()&(os.ModeSetuid|os.ModeSetgid) != 0 && uid != 0 {
		return fmt.Errorf("%w: %s is setuid or setgid, and such programs ignore LD_PRELOAD; make a copy without that bit", ErrProgram, path)
	}
	f, err := elf.Open(path)
	if err != nil {
		return nil //nolint:nilerr // not ELF: a script
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		name := make([]byte, p.Filesz)
		if _, err := p.ReadAt(name, 0); err == nil && strings.Contains(string(name), "musl") {
			return fmt.Errorf("%w: %s is linked with musl, and the library with glibc; use a glibc build of the program", ErrProgram, path)
		}
		return nil
	}
	return fmt.Errorf("%w: %s is statically linked, so it loads no library; link it with -libverbs dynamically", ErrProgram, path)
}
