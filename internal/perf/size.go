package perf

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// units are the suffixes that ParseSize takes, all powers of two.
var units = [...]struct {
	suffix string
	shift  uint
}{
	{"KiB", 10},
	{"MiB", 20},
	{"GiB", 30},
	{"K", 10},
	{"M", 20},
	{"G", 30},
	{"B", 0},
}

// ParseSize reads a number of bytes: 65536, 64K, 64KiB, 1M, 1GiB. Suffixes are powers
// of two in any case; KB, MB and GB are refused because they mean two things.
func ParseSize(s string) (int, error) {
	number, shift := strings.TrimSpace(s), uint(0)
	for _, decimal := range [...]string{"KB", "MB", "GB"} {
		if hasSuffixFold(number, decimal) {
			return 0, fmt.Errorf("size %s: %s can mean powers of 1000 or of 1024; write %siB, or the number of bytes",
				quote(s), decimal, number[:len(number)-1])
		}
	}
	for _, u := range units {
		if hasSuffixFold(number, u.suffix) {
			number, shift = strings.TrimSpace(number[:len(number)-len(u.suffix)]), u.shift
			break
		}
	}
	n, err := strconv.ParseUint(number, 10, 62)
	if err != nil || n > math.MaxInt>>shift {
		return 0, fmt.Errorf("size %s: want a number of bytes such as 65536, 64KiB or 1M", quote(s))
	}
	if n == 0 {
		return 0, fmt.Errorf("size %s: want at least 1 byte", quote(s))
	}
	return int(n << shift), nil
}

func hasSuffixFold(s, suffix string) bool {
	return len(s) >= len(suffix) && strings.EqualFold(s[len(s)-len(suffix):], suffix)
}

// FormatSize returns a size as people say it: 8 B, 64 KiB, 16 MiB. Sizes that are not
// a whole number of a unit stay in the smaller one.
func FormatSize(n int) string {
	for _, u := range [...]struct {
		name  string
		shift uint
	}{{"GiB", 30}, {"MiB", 20}, {"KiB", 10}} {
		if n != 0 && n&(1<<u.shift-1) == 0 {
			return strconv.Itoa(n>>u.shift) + " " + u.name
		}
	}
	return strconv.Itoa(n) + " B"
}

func quote(s string) string { return strconv.Quote(s) }
