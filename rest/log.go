package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
)

// logHandler writes lines as the other services do: time, level, service, text.
type logHandler struct{ out io.Writer }

func newLogHandler(out io.Writer) slog.Handler { return logHandler{out} }

func (logHandler) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }

func (h logHandler) Handle(_ context.Context, record slog.Record) error {
	when := record.Time.UTC().Format("2006-01-02T15:04:05.000Z")
	_, err := fmt.Fprintf(h.out, "%s %s rest: %s\n", when, record.Level, record.Message)
	return err
}

func (h logHandler) WithAttrs([]slog.Attr) slog.Handler { return h }

func (h logHandler) WithGroup(string) slog.Handler { return h }
