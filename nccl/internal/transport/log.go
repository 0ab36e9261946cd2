package transport

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
)

// Handler returns a slog.Handler that passes records as single lines to print. warn is set for warnings and errors; other records are
// informative. Debug records are dropped.
func Handler(print func(warn bool, line string)) slog.Handler { return &handler{print: print} }

type handler struct {
	print func(warn bool, line string)
	attrs string
}

func (h *handler) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }

func (h *handler) Handle(_ context.Context, r slog.Record) error {
	var b strings.Builder
	fmt.Fprintf(&b, "NET/ibverbx : %s%s", r.Message, h.attrs)
	r.Attrs(func(a slog.Attr) bool {
		fmt.Fprintf(&b, " %s=%v", a.Key, a.Value)
		return true
	})
	h.print(r.Level >= slog.LevelWarn, strings.ReplaceAll(b.String(), "\n", "; "))
	return nil
}

func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	more := *h
	for _, a := range attrs {
		more.attrs += fmt.Sprintf(" %s=%v", a.Key, a.Value)
	}
	return &more
}

func (h *handler) WithGroup(string) slog.Handler { return h }
