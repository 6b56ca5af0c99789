package main

import (
	"bytes"
	"errors"
	"io"
	"mime"
	"net/http"
	"os"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	pb "fastserve/rest/gen/fastserve/v1"
)

const (
	bodyLimit  = 30 * time.Second // for a request's body to arrive
	drainBytes = 64 << 20         // of a body that is too large: a client that still writes does not read the answer
)

// edge is what a request meets first: only a known route, its method and a JSON body get through.
type edge struct {
	routes       []route
	next         http.Handler
	maxBodyBytes int64
	writeLimit   time.Duration
}

// route is a path, or all paths below a prefix, with the one method that it takes.
type route struct {
	path     string
	isPrefix bool
	method   string
}

// annotatedRoutes are those of the services' annotations.
func annotatedRoutes() []route {
	var found []route
	for _, file := range []protoreflect.FileDescriptor{
		pb.File_fastserve_v1_openai_proto, pb.File_fastserve_v1_inference_proto, pb.File_fastserve_v1_admin_proto,
	} {
		for s := range file.Services().Len() {
			methods := file.Services().Get(s).Methods()
			for m := range methods.Len() {
				rule, _ := proto.GetExtension(methods.Get(m).Options(), annotations.E_Http).(*annotations.HttpRule)
				if path := rule.GetPost(); path != "" {
					found = append(found, newRoute(path, http.MethodPost))
				} else if path := rule.GetGet(); path != "" {
					found = append(found, newRoute(path, http.MethodGet))
				}
			}
		}
	}
	return found
}

func newRoute(path, method string) route {
	prefix, _, isPrefix := strings.Cut(path, "{")
	return route{prefix, isPrefix, method}
}

func (r route) matches(path string) bool {
	return path == r.path && !r.isPrefix || r.isPrefix && len(path) > len(r.path) && strings.HasPrefix(path, r.path)
}

func (r route) allow() string {
	if r.method == http.MethodGet {
		return "GET, HEAD"
	}
	return r.method
}

func (e *edge) ServeHTTP(plain http.ResponseWriter, r *http.Request) {
	w := &limitedWriter{ResponseWriter: plain, control: http.NewResponseController(plain), limit: e.writeLimit}
	w.extend() // The deadline of the connection's last request may have passed meanwhile.
	found := e.find(r.URL.Path)
	if found == nil {
		edgeRefusal(http.StatusNotFound, "there is no "+shortened(r.URL.Path)).write(w)
		return
	}
	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet // The server leaves out the body.
	}
	if method != found.method {
		w.Header().Set("Allow", found.allow())
		edgeRefusal(http.StatusMethodNotAllowed, found.path+" takes "+found.allow()).write(w)
		return
	}
	r.Method = method
	r.Header.Del("X-HTTP-Method-Override")
	r.Header.Del("X-Forwarded-For") // grpc-gateway would carry them on, and anybody can write them.
	r.Header.Del("X-Forwarded-Host")
	if refused := checkCarried(r.Header); refused != nil {
		refused.write(w)
		return
	}
	if method == http.MethodPost {
		if refused := e.takeBody(w, r); refused != nil {
			refused.write(w)
			return
		}
	}
	e.next.ServeHTTP(w, r)
}

func (e *edge) find(path string) *route {
	for i := range e.routes {
		if e.routes[i].matches(path) {
			return &e.routes[i]
		}
	}
	return nil
}

// takeBody reads the whole body, so that what follows has it in memory.
func (e *edge) takeBody(w http.ResponseWriter, r *http.Request) *refusal {
	if refused := checkType(r.Header); refused != nil {
		return refused
	}
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(bodyLimit))
	body, err := io.ReadAll(io.LimitReader(r.Body, e.maxBodyBytes+1))
	var answer refusal
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		answer = edgeRefusal(http.StatusRequestTimeout, "the request's body did not arrive in time")
	case err != nil:
		answer = edgeRefusal(http.StatusBadRequest, "the request's body can't be read")
	case int64(len(body)) > e.maxBodyBytes:
		_, _ = io.CopyN(io.Discard, r.Body, drainBytes)
		answer = edgeRefusal(http.StatusRequestEntityTooLarge, "the request's body is larger than "+megabytes(e.maxBodyBytes))
	default:
		_ = control.SetReadDeadline(time.Time{})
		r.Body = io.NopCloser(bytes.NewReader(body))
		r.ContentLength = int64(len(body))
		return nil
	}
	return &answer
}

// checkCarried refuses what gRPC can't carry: metadata is printable ASCII, and anything else would end the link to the gateway, with the calls of others.
func checkCarried(header http.Header) *refusal {
	for _, name := range append([]string{authorization}, carriedMetadata...) {
		for _, value := range header.Values(name) {
			if strings.IndexFunc(value, func(r rune) bool { return r < ' ' || r > '~' }) >= 0 {
				answer := edgeRefusal(http.StatusBadRequest, "the header "+name+" must be printable ASCII")
				return &answer
			}
		}
	}
	return nil
}

func checkType(header http.Header) *refusal {
	wanted := func(what string) *refusal {
		answer := edgeRefusal(http.StatusUnsupportedMediaType, what)
		return &answer
	}
	kind, parameters, err := mime.ParseMediaType(header.Get("Content-Type"))
	if err != nil || kind != "application/json" {
		return wanted("the body must have Content-Type: application/json")
	}
	if charset, ok := parameters["charset"]; ok && !strings.EqualFold(charset, "utf-8") {
		return wanted("the body must be UTF-8")
	}
	if coding := header.Get("Content-Encoding"); coding != "" && !strings.EqualFold(coding, "identity") {
		return wanted("the body must not be encoded")
	}
	return nil
}

// limitedWriter gives every write to a client so much time: one that does not read is cut off.
type limitedWriter struct {
	http.ResponseWriter
	control *http.ResponseController
	limit   time.Duration
}

func (w *limitedWriter) Write(data []byte) (int, error) {
	w.extend()
	return w.ResponseWriter.Write(data)
}

func (w *limitedWriter) extend() { _ = w.control.SetWriteDeadline(time.Now().Add(w.limit)) }

func (w *limitedWriter) Flush() { _ = w.control.Flush() }

func (w *limitedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }

func shortened(path string) string {
	if len(path) > 100 {
		return path[:100] + "..."
	}
	return path
}
