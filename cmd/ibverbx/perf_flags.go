package main

import (
	"errors"
	"strconv"
	"strings"
	"time"

	"ibverbx/internal/perf"
	"ibverbx/verbs"
)

// sizes is a flag that takes one message size or several with commas.
type sizes []int

func (v *sizes) Set(s string) error {
	var list []int
	for part := range strings.SplitSeq(s, ",") {
		n, err := perf.ParseSize(part)
		if err != nil {
			return err
		}
		list = append(list, n)
	}
	*v = append(*v, list...)
	return nil
}

func (v *sizes) String() string { return "" }
func (v *sizes) Type() string   { return "size" }

// count is a flag that takes a whole number above 0; unset it is 0.
type count int

func (v *count) Set(s string) error {
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil || n < 1 {
		return errors.New("want a whole number from 1 to 2147483647")
	}
	*v = count(n)
	return nil
}

func (v *count) String() string { return "" }
func (v *count) Type() string   { return "count" }

// seconds is a flag that takes a number of seconds or a Go duration; unset it is 0.
type seconds time.Duration

func (v *seconds) Set(s string) error {
	if n, err := strconv.ParseFloat(s, 64); err == nil && n > 0 && n < 1e9 {
		*v = seconds(n * float64(time.Second))
		return nil
	}
	if d, err := time.ParseDuration(s); err == nil && d > 0 {
		*v = seconds(d)
		return nil
	}
	return errors.New("want seconds such as 5 or 0.5, or a time such as 500ms or 2m")
}

func (v *seconds) String() string { return "" }
func (v *seconds) Type() string   { return "time" }

// connection is a flag that takes the name of a transport; unset it is 0.
type connection verbs.QPType

func (v *connection) Set(s string) error {
	for _, t := range []verbs.QPType{verbs.RC, verbs.UC, verbs.UD} {
		if strings.EqualFold(s, t.String()) {
			*v = connection(t)
			return nil
		}
	}
	return errors.New("want RC, UC or UD")
}

func (v *connection) String() string { return "" }
func (v *connection) Type() string   { return "transport" }
