package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health/grpc_health_v1"

	pb "fastserve/rest/gen/fastserve/v1"
)

const askLimit = 2 * time.Second // for health and metrics of the gateway

// front answers HTTP requests with the calls of one gateway.
type front struct {
	connection *grpc.ClientConn
	link       *link
	metrics    string // HOST:PORT of the gateway's metrics, or empty
	draining   atomic.Bool
}

// handler is the whole of what the front serves.
func (f *front) handler(ctx context.Context, maxBodyBytes int64, writeLimit time.Duration) (http.Handler, error) {
	marshal := newMarshaler()
	pb.UseForwarder(marshal.forward)
	mux := runtime.NewServeMux(
		runtime.WithMarshalerOption(runtime.MIMEWildcard, marshal),
		runtime.WithIncomingHeaderMatcher(carriedHeader),
		runtime.WithOutgoingHeaderMatcher(func(string) (string, bool) { return "", false }),
		runtime.WithOutgoingTrailerMatcher(func(string) (string, bool) { return "", false }),
		runtime.WithDisablePathLengthFallback(),
		runtime.WithErrorHandler(writeFailure),
		runtime.WithRoutingErrorHandler(writeRoutingFailure),
	)
	if err := errors.Join(
		pb.RegisterOpenAiServiceHandlerClient(ctx, mux, f.link),
		pb.RegisterInferenceServiceHandlerClient(ctx, mux, pb.NewInferenceServiceClient(f.connection)),
		pb.RegisterAdminServiceHandlerClient(ctx, mux, pb.NewAdminServiceClient(f.connection)),
	); err != nil {
		return nil, err
	}
	routes := annotatedRoutes()
	own := http.NewServeMux()
	own.Handle("/", mux)
	for path, handle := range map[string]http.HandlerFunc{
		"/healthz": f.healthz, "/readyz": f.readyz, "/health": f.readyz, "/metrics": f.proxyMetrics,
	} {
		own.HandleFunc(path, handle)
		routes = append(routes, newRoute(path, http.MethodGet))
	}
	page, err := pageHandlers()
	if err != nil {
		return nil, err
	}
	for path, handle := range page {
		own.HandleFunc(path, handle)
		routes = append(routes, newRoute(strings.TrimSuffix(path, "{$}"), http.MethodGet))
	}
	return &edge{routes: routes, next: own, maxBodyBytes: maxBodyBytes, writeLimit: writeLimit}, nil
}

func carriedHeader(name string) (string, bool) {
	for _, carried := range carriedMetadata {
		if http.CanonicalHeaderKey(carried) == name {
			return carried, true
		}
	}
	return "", false
}

func writeFailure(_ context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, w http.ResponseWriter, _ *http.Request, err error) {
	refusalOf(err).write(w)
}

func writeRoutingFailure(
	_ context.Context, _ *runtime.ServeMux, _ runtime.Marshaler, w http.ResponseWriter, r *http.Request, httpStatus int,
) {
	edgeRefusal(httpStatus, "there is no "+shortened(r.URL.Path)).write(w)
}

// healthz says that this process lives.
func (f *front) healthz(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, `{"status":"ok"}`+"\n")
}

// readyz says whether a request would be taken now.
func (f *front) readyz(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), askLimit)
	defer cancel()
	if f.draining.Load() {
		edgeRefusal(http.StatusServiceUnavailable, "this server is shutting down").write(w)
		return
	}
	health := grpc_health_v1.NewHealthClient(f.connection)
	answer, err := health.Check(ctx, &grpc_health_v1.HealthCheckRequest{Service: "readiness"})
	if err != nil {
		edgeRefusal(http.StatusServiceUnavailable, "the gateway can't be reached").write(w)
	} else if answer.Status != grpc_health_v1.HealthCheckResponse_SERVING {
		edgeRefusal(http.StatusServiceUnavailable, "no worker group is ready").write(w)
	} else {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"status":"ready"}`+"\n")
	}
}

// proxyMetrics shows the gateway's page.
func (f *front) proxyMetrics(w http.ResponseWriter, r *http.Request) {
	if f.metrics == "" {
		edgeRefusal(http.StatusNotFound, "this server was not told where the gateway's metrics are").write(w)
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), askLimit)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+f.metrics+"/metrics", nil)
	if err != nil {
		edgeRefusal(http.StatusInternalServerError, err.Error()).write(w)
		return
	}
	request.Header.Set("Accept", r.Header.Get("Accept"))
	answer, err := metricsClient.Do(request)
	if err != nil {
		edgeRefusal(http.StatusServiceUnavailable, "the gateway's metrics can't be reached").write(w)
		return
	}
	defer answer.Body.Close()
	w.Header().Set("Content-Type", answer.Header.Get("Content-Type"))
	w.WriteHeader(answer.StatusCode)
	_, _ = io.Copy(w, answer.Body)
}

// metricsClient uses no proxy of the environment: the gateway is addressed directly.
var metricsClient = &http.Client{Transport: &http.Transport{MaxIdleConns: 4}}

func megabytes(bytes int64) string {
	return strconv.FormatFloat(float64(bytes)/(1<<20), 'g', 4, 64) + " MiB"
}
