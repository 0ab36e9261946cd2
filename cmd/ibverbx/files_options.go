package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"ibverbx/files"
)

// defineBoth adds the flags that get and put have in common.
func (f *transferFlags) defineBoth(fl *pflag.FlagSet, s streams) {
	fl.BoolVar(&f.cfg.Delete, "delete", false, "delete files that the source directory lacks")
	fl.BoolVarP(&f.cfg.DryRun, "dry-run", "n", false, "only count the files to copy and delete")
	fl.Func("exclude", "exclude files that match `pattern` (as with rsync)", f.rule("- "))
	fl.Func("include", "include files that match `pattern`; first match wins", f.rule("+ "))
	fl.Func("exclude-from", "read exclude patterns from `file`, one per line", f.rulesFrom)
	fl.Func("files-from", "copy only the names in `file`, one per line", f.namesFrom(func() io.Reader { return s.in }))
	fl.BoolVar(&f.cfg.Checksum, "checksum", false, "compare contents, not just size and modification time")
	fl.BoolVar(&f.cfg.Xattrs, "xattrs", false, "copy extended attributes (user.*)")
	fl.BoolVar(&f.cfg.Owner, "owner", false, "copy numeric users and groups (as root)")
	fl.Func("bwlimit", "limit the transfer to `rate` KiB/s (or with a unit: 10M)", f.limit)
	fl.StringVar(&f.sync, "sync", "batch", "`when` to fsync: batch, file or never")
	fl.BoolVar(&f.cfg.Fresh, "fresh", false, "start over and ignore existing and partial files")
}

// syncs are the values of --sync.
var syncs = map[string]files.Sync{"never": files.SyncNever, "file": files.SyncFile, "batch": files.SyncBatch, "dir": files.SyncBatch}

// check completes the configuration, and refuses values that this host cannot honor.
func (f *transferFlags) check(sends bool) error {
	ok := false
	if f.cfg.Sync, ok = syncs[f.sync]; !ok {
		return refuse("--sync "+f.sync, "there is no such value", "use batch, file or never")
	}
	switch {
	case f.names != nil && f.cfg.Delete:
		return refuse("--delete", "with --files-from it would delete every other file", "leave one of them out")
	case !sends && f.cfg.Parallel < 1:
		return refuse(fmt.Sprint("--jobs ", f.cfg.Parallel), "the number is below 1", "use 1 or more")
	case f.cfg.Xattrs && runtime.GOOS != "linux":
		return refuse("--xattrs", "only Linux has extended attributes that ibverbx copies", "leave the flag out")
	case f.cfg.Owner && !sends && os.Geteuid() != 0:
		return refuse("--owner", "only root can give files to other users", "run it as root, or leave the flag out")
	}
	return nil
}

// rateUnits are the units of --bwlimit.
var rateUnits = map[byte]float64{'B': 1, 'K': 1 << 10, 'M': 1 << 20, 'G': 1 << 30}

// limit sets the rate from the value of --bwlimit. As with rsync, a number without a unit is in KiB/s.
func (f *transferFlags) limit(text string) error {
	number, unit := text, rateUnits['K']
	if text != "" {
		if u, ok := rateUnits[strings.ToUpper(text[len(text)-1:])[0]]; ok {
			number, unit = text[:len(text)-1], u
		}
	}
	rate, err := strconv.ParseFloat(number, 64)
	if rate *= unit; err != nil || !(rate >= 1 && rate < math.MaxInt64) {
		return errors.New("want a number with B, K, M or G, for example 10M")
	}
	f.cfg.BytesPerSecond = int64(rate)
	return nil
}

// rule returns a function that adds a rule for a pattern.
func (f *transferFlags) rule(sign string) func(string) error {
	return func(pattern string) error {
		if pattern == "" || strings.Contains(pattern, "\n") {
			return errors.New("want a pattern")
		}
		f.cfg.Filter = append(f.cfg.Filter, sign+pattern)
		return nil
	}
}

// rulesFrom adds the rules in a file. As with rsync, lines that begin with # or ; are comments, and lines that begin with a sign and a
// blank are rules.
func (f *transferFlags) rulesFrom(name string) error {
	if name == dash {
		return refuseDash(dash)
	}
	b, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(b)) {
		line = strings.TrimRight(line, "\r\n")
		switch {
		case line == "" || line[0] == '#' || line[0] == ';':
		case strings.HasPrefix(line, "+ ") || strings.HasPrefix(line, "- "):
			f.cfg.Filter = append(f.cfg.Filter, line)
		default:
			f.cfg.Filter = append(f.cfg.Filter, "- "+line)
		}
	}
	return nil
}
