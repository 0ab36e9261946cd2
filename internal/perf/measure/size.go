package measure

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// ParseSize parses a number of bytes: 65536, 64K, 64KiB, 1M, 1GiB. Suffixes are powers of two, in
// upper or lower case. KB, MB and GB are rejected as ambiguous.
func ParseSize(s string) (int, error) {
	upper := strings.ToUpper(strings.TrimSpace(s))
	number, binary := strings.CutSuffix(upper, "IB")
	if !binary {
		number = strings.TrimSuffix(upper, "B")
	}
	shift := 0
	if n := len(number) - 1; n >= 0 {
		shift = 10 * (1 + strings.IndexByte("KMG", number[n]))
	}
	switch {
	case shift > 0 && !binary && number != upper:
		return 0, fmt.Errorf("size %s: %s can mean powers of 1000 or of 1024; write %siB, or the number of bytes",
			quote(s), upper[len(upper)-2:], strings.TrimSpace(s)[:len(upper)-1])
	case shift > 0:
		number = strings.TrimSpace(number[:len(number)-1])
	case binary:
		number = ""
	}
	n, err := strconv.ParseUint(strings.TrimSpace(number), 10, 62)
	if err != nil || n > math.MaxInt>>shift {
		return 0, fmt.Errorf("size %s: use a number of bytes such as 65536, 64KiB or 1M", quote(s))
	}
	if n == 0 {
		return 0, fmt.Errorf("size %s: use at least 1 byte", quote(s))
	}
	return int(n << shift), nil
}

// FormatSize formats n in the largest unit that divides it: 8 B, 64 KiB, 16 MiB.
func FormatSize(n int) string {
	unit := 0
	for n != 0 && n&1023 == 0 && unit < 3 {
		n, unit = n>>10, unit+1
	}
	return fmt.Sprintf("%d %s", n, [...]string{"B", "KiB", "MiB", "GiB"}[unit])
}

func quote(s string) string { return strconv.Quote(s) }
