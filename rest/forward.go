package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

const eventStream = "text/event-stream"

// marshaler takes an HttpBody as it is and everything else as protobuf's JSON, with the names of the protos.
type marshaler struct{ runtime.JSONPb }

func newMarshaler() *marshaler {
	return &marshaler{runtime.JSONPb{MarshalOptions: protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}}}
}

func (m *marshaler) NewDecoder(r io.Reader) runtime.Decoder {
	return runtime.DecoderFunc(func(v any) error {
		data, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		if body, ok := v.(*httpbody.HttpBody); ok {
			body.ContentType, body.Data = "application/json", data
			return nil
		}
		if err := checkJSON(data); err != nil {
			return err
		}
		return m.Unmarshal(data, v)
	})
}

// checkJSON says where a document that is not JSON goes wrong.
func checkJSON(data []byte) error {
	var document json.RawMessage
	var wrong *json.SyntaxError
	if !errors.As(json.Unmarshal(data, &document), &wrong) {
		return nil
	}
	read := data[:min(int(wrong.Offset), len(data))]
	line := bytes.Count(read, []byte("\n")) + 1
	column := len(read) - (bytes.LastIndexByte(read, '\n') + 1)
	return fmt.Errorf("body: is not valid JSON: %w at line %d column %d", wrong, line, column)
}

// forward writes the messages of a stream as they come: an HttpBody as it is, any other message as a line {"result": ...}. The first one, or the error
// in its place, decides the HTTP status. A later error is an event or a line of its own; an answer of another kind is cut off.
func (m *marshaler) forward(
	_ context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, w http.ResponseWriter, _ *http.Request,
	receive func() (proto.Message, error), _ ...func(context.Context, http.ResponseWriter, proto.Message) error,
) {
	control := http.NewResponseController(w)
	kind := ""
	for {
		message, err := receive()
		if err != nil {
			if !errors.Is(err, io.EOF) {
				fail(w, control, kind, refusalOf(err))
			}
			return
		}
		data, contentType, err := m.framed(message)
		if err != nil {
			fail(w, control, kind, refusalOf(err))
			return
		}
		if kind == "" {
			kind = contentType
			w.Header().Set("Content-Type", kind)
			if kind != "application/json" {
				w.Header().Set("Cache-Control", "no-cache")
				w.Header().Set("X-Accel-Buffering", "no")
			}
		}
		if _, err := w.Write(data); err != nil {
			return
		}
		if kind != "application/json" && control.Flush() != nil {
			return
		}
	}
}

const lines = "application/x-ndjson"

func (m *marshaler) framed(message proto.Message) ([]byte, string, error) {
	if body, ok := message.(*httpbody.HttpBody); ok {
		return body.Data, body.ContentType, nil
	}
	document, err := m.Marshal(message)
	if err != nil {
		return nil, "", err
	}
	line, err := json.Marshal(map[string]json.RawMessage{"result": document})
	return append(line, '\n'), lines, err
}

func fail(w http.ResponseWriter, control *http.ResponseController, kind string, refused refusal) {
	switch kind {
	case "":
		refused.write(w)
	case eventStream:
		_, _ = w.Write([]byte("data: " + string(refused.body()) + "\n\n"))
		_ = control.Flush()
	case lines:
		_, _ = w.Write(append(refused.body(), '\n'))
	default:
		panic(http.ErrAbortHandler) // The client must not take half an answer for a whole one.
	}
}
