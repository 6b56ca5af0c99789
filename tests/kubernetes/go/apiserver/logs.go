package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	genericregistry "k8s.io/apiserver/pkg/registry/generic/registry"
)

const followPause = 100 * time.Millisecond

// logREST reads DIR/NAMESPACE_POD_CONTAINER.log and, for the life before, DIR/NAMESPACE_POD_CONTAINER_previous.log, which
// whoever runs the pods provides.
type logREST struct {
	pods *genericregistry.Store
	dir  string
}

func (r *logREST) New() runtime.Object { return &corev1.Pod{} }
func (r *logREST) Destroy()            {}
func (r *logREST) NewGetOptions() (runtime.Object, bool, string) {
	return &corev1.PodLogOptions{}, false, ""
}
func (r *logREST) ProducesMIMETypes(string) []string      { return []string{"text/plain"} }
func (r *logREST) ProducesObject(string) any              { return "" }
func (r *logREST) OverrideMetricsVerb(verb string) string { return verb }

func (r *logREST) Get(ctx context.Context, name string, o runtime.Object) (runtime.Object, error) {
	object, err := r.pods.Get(ctx, name, &metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	pod, options := object.(*corev1.Pod), o.(*corev1.PodLogOptions)
	container := options.Container
	if container == "" {
		container = pod.Spec.Containers[0].Name
	}
	if options.Previous {
		container += "_previous"
	}
	return &logStream{path: filepath.Join(r.dir, pod.Namespace+"_"+pod.Name+"_"+container+".log"), follow: options.Follow}, nil
}

// logStream is a log as runtimes keep it, a line "TIME STREAM TAG TEXT" each; what is read from it is the text alone.
type logStream struct {
	path   string
	follow bool
	file   *os.File
	ctx    context.Context
	begun  []byte // of a line whose end has not been written yet
	ready  []byte
}

func (l *logStream) GetObjectKind() schema.ObjectKind { return schema.EmptyObjectKind }
func (l *logStream) DeepCopyObject() runtime.Object   { return l }

func (l *logStream) InputStream(ctx context.Context, _, _ string) (io.ReadCloser, bool, string, error) {
	file, err := os.Open(l.path)
	if err != nil {
		return nil, false, "", errors.NewBadRequest("no log yet")
	}
	l.file, l.ctx = file, ctx
	return l, l.follow, "text/plain", nil
}

func (l *logStream) Close() error { return l.file.Close() }

func (l *logStream) Read(p []byte) (int, error) {
	for len(l.ready) == 0 {
		chunk := make([]byte, 32<<10)
		n, err := l.file.Read(chunk)
		l.take(chunk[:n])
		if n == 0 && err != io.EOF {
			return 0, err
		}
		if n == 0 {
			if !l.follow {
				return 0, io.EOF
			}
			select {
			case <-l.ctx.Done():
				return 0, io.EOF
			case <-time.After(followPause):
			}
		}
	}
	n := copy(p, l.ready)
	l.ready = l.ready[n:]
	return n, nil
}

func (l *logStream) take(chunk []byte) {
	l.begun = append(l.begun, chunk...)
	for {
		line, rest, whole := bytes.Cut(l.begun, []byte("\n"))
		if !whole {
			return
		}
		l.begun = rest
		if parts := bytes.SplitN(line, []byte(" "), 4); len(parts) == 4 {
			l.ready = append(l.ready, parts[3]...)
			if string(parts[2]) == "F" {
				l.ready = append(l.ready, '\n')
			}
		}
	}
}
