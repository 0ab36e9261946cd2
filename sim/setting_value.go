package sim

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"ibverbx"
	"ibverbx/verbs"
)

// unit is how a setting is written. Every value is stored as an integer.
type unit uint8

const (
	unitCount   unit = iota
	unitBytes        // 4096, 64KiB
	unitPercent      // 2%, 0.05%; stored in hundredths of a percent
	unitTime         // 5us, 20ms; stored in nanoseconds
	unitRate         // 1GB/s, none; stored in bytes per second
	unitSwitch       // on, off
	unitScheme
	unitPolicy
	unitMTU
)

var switchNames = []string{"off", "on"}

// parseValue parses one value of a unit.
func parseValue(u unit, s string) (int64, error) {
	switch u {
	case unitPercent:
		f, err := strconv.ParseFloat(strings.TrimSuffix(s, "%"), 64)
		if err != nil || !strings.HasSuffix(s, "%") || f < 0 || f > 100 {
			return 0, fmt.Errorf("%q is not a percentage such as 2%% or 0.05%%", s)
		}
		return int64(math.Round(f * 100)), nil
	case unitTime:
		d, err := time.ParseDuration(s)
		if err != nil || d < 0 {
			return 0, fmt.Errorf("%q is not a time such as 20us or 1.5ms", s)
		}
		return int64(d), nil
	case unitRate:
		if s == "none" {
			return 0, nil
		}
		return parseScaled(s, "B/s", []scale{{"G", 1e9}, {"M", 1e6}, {"K", 1e3}, {"", 1}}, "none, 100MB/s or 2GB/s")
	case unitBytes:
		return parseScaled(s, "", []scale{{"MiB", 1 << 20}, {"KiB", 1 << 10}, {"", 1}}, "4096 or 64KiB")
	case unitSwitch:
		return parseName(s, switchNames)
	case unitScheme:
		var v ibverbx.Scheme
		err := v.UnmarshalText([]byte(s))
		return int64(v), err
	case unitPolicy:
		var v ibverbx.Policy
		err := v.UnmarshalText([]byte(s))
		return int64(v), err
	case unitMTU:
		for m := verbs.MTU256; m <= verbs.MTU4096; m++ {
			if s == strconv.Itoa(m.Bytes()) {
				return int64(m), nil
			}
		}
		return 0, fmt.Errorf("%q is not an MTU: want 256, 512, 1024, 2048 or 4096", s)
	default:
		return parseScaled(s, "", []scale{{"", 1}}, "a whole number")
	}
}

// scale is the factor of the letters after a number.
type scale struct {
	letters string
	factor  float64
}

func parseScaled(s, end string, scales []scale, want string) (int64, error) {
	for _, c := range scales {
		if rest, ok := strings.CutSuffix(s, c.letters+end); ok {
			if f, err := strconv.ParseFloat(rest, 64); err == nil && f >= 0 && f*c.factor < 1<<60 {
				return int64(math.Round(f * c.factor)), nil
			}
		}
	}
	return 0, fmt.Errorf("%q: want %s", s, want)
}

func parseName(s string, names []string) (int64, error) {
	for i, name := range names {
		if name == s {
			return int64(i), nil
		}
	}
	return 0, fmt.Errorf("%q: want one of %s", s, strings.Join(names, ", "))
}

// formatValue writes a value so that parseValue returns the same one.
func formatValue(u unit, v int64) string {
	switch u {
	case unitPercent:
		return strconv.FormatFloat(float64(v)/100, 'f', -1, 64) + "%"
	case unitTime:
		return strings.ReplaceAll(time.Duration(v).String(), "µ", "u")
	case unitRate:
		if v == 0 {
			return "none"
		}
		return strconv.FormatInt(v, 10) + "B/s"
	case unitSwitch:
		return switchNames[v]
	case unitScheme:
		return ibverbx.Scheme(v).String()
	case unitPolicy:
		return ibverbx.Policy(v).String()
	case unitMTU:
		return strconv.Itoa(verbs.MTU(v).Bytes())
	default:
		return strconv.FormatInt(v, 10)
	}
}

// pinned is the value of a setting in a scenario, or the range to draw it from.
type pinned struct{ low, high int64 }

// parsePin parses a value or a range, low..high.
func parsePin(u unit, s string) (pinned, error) {
	low, high, isRange := strings.Cut(s, "..")
	a, err := parseValue(u, low)
	if err != nil || !isRange {
		return pinned{a, a}, err
	}
	b, err := parseValue(u, high)
	if err == nil && b < a {
		err = fmt.Errorf("%q ends before it begins", s)
	}
	return pinned{a, b}, err
}
