package settings

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"ibverbx/peer"
)

// ParseImpair parses a list such as "rail=1,loss=1%,delay=1ms".
func ParseImpair(s string) (i peer.Impair, err error) {
	i.Rail = -1
	set := map[string]bool{}
	for part := range strings.SplitSeq(s, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		if set[name] {
			return i, fmt.Errorf("%s appears twice", name)
		}
		set[name] = true
		switch name {
		case "rail":
			i.Rail, err = strconv.Atoi(value)
			if err != nil || i.Rail < 0 {
				err = fmt.Errorf("rail=%s: use the number of a rail: 0, 1 and so on", value)
			}
		case "loss":
			i.Loss, err = parsePart(name, value)
		case "duplicate":
			i.Duplicate, err = parsePart(name, value)
		case "reorder":
			i.Reorder, err = parsePart(name, value)
		case "corrupt":
			i.Corrupt, err = parsePart(name, value)
		case "delay":
			i.Delay, err = parseDelay(name, value)
		case "jitter":
			i.Jitter, err = parseDelay(name, value)
		case "rate":
			if i.Rate, err = ParseSize(value); err != nil {
				err = fmt.Errorf("rate=%s: use bytes per second, such as 100MiB", value)
			}
		default:
			err = fmt.Errorf("%q: use rail, loss, duplicate, reorder, corrupt, delay, jitter or rate, each with a value, such as rail=1,loss=1%%,delay=1ms", part)
		}
		if err != nil {
			return i, err
		}
	}
	if i == (peer.Impair{Rail: i.Rail}) {
		return i, fmt.Errorf("%q does nothing: add a fault, such as loss=1%%", s)
	}
	return i, nil
}

// parsePart parses a fraction: "1%" or "0.01".
func parsePart(name, value string) (float64, error) {
	number, percent := strings.CutSuffix(value, "%")
	p, err := strconv.ParseFloat(number, 64)
	if percent {
		p /= 100
	}
	if err != nil || !(p >= 0 && p <= 1) {
		return 0, fmt.Errorf("%s=%s: use a part of the packets, such as 1%%", name, value)
	}
	return p, nil
}

func parseDelay(name, value string) (time.Duration, error) {
	d, err := time.ParseDuration(value)
	if err != nil || d < 0 || d > peer.MaxImpairDelay {
		return 0, fmt.Errorf("%s=%s: use a time up to %v, such as 1ms", name, value, peer.MaxImpairDelay)
	}
	return d, nil
}

// ParseSize parses a number of bytes: 65536, 64K, 64KiB, 1M, 1GiB. Suffixes are powers of two, in
// upper or lower case. KB, MB and GB are rejected as ambiguous.
func ParseSize(s string) (int, error) {
	text := strings.TrimSpace(s)
	upper := strings.ToUpper(text)
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
			strconv.Quote(s), upper[len(upper)-2:], text[:len(text)-1]) // other letters may have another length in upper case
	case shift > 0:
		number = strings.TrimSpace(number[:len(number)-1])
	case binary:
		number = ""
	}
	n, err := strconv.ParseUint(strings.TrimSpace(number), 10, 62)
	if err != nil || n > math.MaxInt>>shift {
		return 0, fmt.Errorf("size %s: use a number of bytes such as 65536, 64KiB or 1M", strconv.Quote(s))
	}
	if n == 0 {
		return 0, fmt.Errorf("size %s: use at least 1 byte", strconv.Quote(s))
	}
	return int(n << shift), nil
}
