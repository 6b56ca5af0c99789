package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"strings"
)

// logHandler writes lines as the other services do: time, level, service, text; or an object with these, as JSON.
type logHandler struct {
	out  io.Writer
	json bool
}

// logLine is an object of a JSON log.
type logLine struct {
	Time    string `json:"time"`
	Level   string `json:"level"`
	Service string `json:"service"`
	Message string `json:"message"`
}

func newLogHandler(out io.Writer, asJSON bool) slog.Handler { return logHandler{out, asJSON} }

func (logHandler) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }

func (h logHandler) Handle(_ context.Context, record slog.Record) error {
	when := record.Time.UTC().Format("2006-01-02T15:04:05.000Z")
	if !h.json {
		_, err := fmt.Fprintf(h.out, "%s %s rest: %s\n", when, record.Level, record.Message)
		return err
	}
	line, err := json.Marshal(logLine{when, levelName(record.Level), "rest", record.Message})
	if err != nil {
		return err
	}
	_, err = h.out.Write(append(line, '\n'))
	return err
}

// levelName is the level as the other services write it.
func levelName(level slog.Level) string {
	if level == slog.LevelWarn {
		return "warning"
	}
	return strings.ToLower(level.String())
}

func (h logHandler) WithAttrs([]slog.Attr) slog.Handler { return h }

func (h logHandler) WithGroup(string) slog.Handler { return h }
