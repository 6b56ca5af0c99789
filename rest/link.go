package main

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math"
	"strings"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/api/httpbody"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "fastserve/rest/gen/fastserve/v1"
)

const (
	creditBytes   = 64 * 1024 // what the gateway may send ahead of a client
	firstPause    = 50 * time.Millisecond
	longestPause  = time.Second
	greetingLimit = 5 * time.Second
)

// Metadata that travels on to the gateway with a call. So does "authorization", which grpc-gateway carries itself.
var carriedMetadata = []string{"traceparent", "tracestate"}

const authorization = "authorization"

// link carries the calls of OpenAiService over one stream to the gateway, which it dials again whenever it ends. It takes the place of the generated
// client: what a message costs gRPC is paid once for all calls that have something to say at a time. A call's answer is buffered up to its credit, and
// the gateway gets new credit when the client has taken what came before; so a reader that stops costs a bounded amount of memory and slows nobody.
type link struct {
	client  pb.FrontServiceClient
	linked  chan struct{} // closed when the gateway has been reached for the first time
	once    sync.Once
	mu      sync.Mutex
	current *session // nil while the gateway can't be reached
}

func newLink(client pb.FrontServiceClient) *link {
	return &link{client: client, linked: make(chan struct{})}
}

// session is one life of the stream.
type session struct {
	stream grpc.BidiStreamingClient[pb.FrontLinkRequest, pb.FrontLinkResponse]

	sending sync.Mutex // held while a message is sent: ids must reach the gateway in ascending order
	lastID  uint64

	mu    sync.Mutex
	calls map[uint64]*call
	over  bool
}

// run keeps the link up until the context ends.
func (l *link) run(ctx context.Context) {
	pause, told := firstPause, false
	for ctx.Err() == nil {
		begun := time.Now()
		err := l.serve(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(begun) > longestPause {
			pause, told = firstPause, false
		}
		if !told {
			slog.Warn("no link to the gateway: " + err.Error() + "; redialling")
			told = true
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
		pause = min(2*pause, longestPause)
	}
}

// serve is one attempt: it returns why the stream ended, or why there was none.
func (l *link) serve(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	greeting := time.AfterFunc(greetingLimit, cancel)
	stream, err := l.client.FrontLink(ctx)
	if err != nil {
		return err
	}
	if _, err := stream.Header(); err != nil { // The gateway sends it at once.
		return err
	}
	greeting.Stop()
	now := &session{stream: stream, calls: map[uint64]*call{}}
	l.set(now)
	l.once.Do(func() { close(l.linked) })
	slog.Info("linked to the gateway")
	for {
		response, err := stream.Recv()
		if err != nil {
			l.set(nil)
			now.end(status.Error(codes.Unavailable, "the connection to the gateway was lost"))
			return err
		}
		for _, piece := range response.Pieces {
			now.deliver(piece)
		}
	}
}

func (l *link) set(current *session) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.current = current
}

// begin starts a call. It ends early when its context does.
func (l *link) begin(ctx context.Context, method string, request proto.Message) (*call, error) {
	l.mu.Lock()
	now := l.current
	l.mu.Unlock()
	if now == nil {
		return nil, status.Error(codes.Unavailable, "the gateway can't be reached")
	}
	body, err := proto.Marshal(request)
	if err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	first := &pb.FrontCall{Method: method, Request: body, Metadata: carried(ctx), CreditBytes: creditBytes}
	if deadline, ok := ctx.Deadline(); ok {
		first.DeadlineInS = proto.Float64(math.Max(0, time.Until(deadline).Seconds()))
	}
	begun := &call{session: now, ctx: ctx, woken: make(chan struct{}, 1)}
	now.sending.Lock()
	now.lastID++
	begun.id, first.CallId = now.lastID, now.lastID
	now.mu.Lock()
	over := now.over
	now.calls[begun.id] = begun
	now.mu.Unlock()
	if !over {
		err = now.stream.Send(&pb.FrontLinkRequest{Message: &pb.FrontLinkRequest_Call{Call: first}})
	}
	now.sending.Unlock()
	if over || err != nil {
		now.forget(begun.id)
		return nil, status.Error(codes.Unavailable, "the connection to the gateway was lost")
	}
	context.AfterFunc(ctx, begun.cancel)
	return begun, nil
}

func carried(ctx context.Context) map[string]string {
	outgoing, _ := metadata.FromOutgoingContext(ctx)
	found := map[string]string{}
	for _, name := range carriedMetadata {
		if values := outgoing.Get(name); len(values) > 0 {
			found[name] = values[0]
		}
	}
	if values := outgoing.Get(authorization); len(values) > 0 {
		found[authorization] = strings.Join(values, ", ") // Two are no key: who calls must not depend on who reads which.
	}
	return found
}

func (s *session) send(request *pb.FrontLinkRequest) {
	s.sending.Lock()
	defer s.sending.Unlock()
	_ = s.stream.Send(request) // If it fails, the stream has ended, and Recv tells every call.
}

// forget reports whether the call was still known.
func (s *session) forget(id uint64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, known := s.calls[id]
	delete(s.calls, id)
	return known
}

func (s *session) deliver(piece *pb.FrontPiece) {
	s.mu.Lock()
	to := s.calls[piece.CallId]
	if piece.End != nil {
		delete(s.calls, piece.CallId)
	}
	s.mu.Unlock()
	if to == nil { // It was cancelled.
		return
	}
	var end error
	if piece.End != nil {
		if end = status.FromProto(piece.End).Err(); end == nil {
			end = io.EOF
		}
	}
	to.put(piece.ContentType, piece.Data, end)
}

func (s *session) end(err error) {
	s.mu.Lock()
	calls := s.calls
	s.calls, s.over = map[uint64]*call{}, true
	s.mu.Unlock()
	for _, one := range calls {
		one.put("", nil, err)
	}
}

// call is one call of a session, as the generated handlers read it: a stream of HttpBody.
type call struct {
	session *session
	id      uint64
	ctx     context.Context
	woken   chan struct{}
	owed    int // bytes taken for which the gateway has no credit yet

	mu          sync.Mutex
	contentType string
	data        []byte
	err         error // why it ended; io.EOF if it succeeded
}

func (c *call) put(contentType string, data []byte, err error) {
	c.mu.Lock()
	if contentType != "" {
		c.contentType = contentType
	}
	if c.data == nil {
		c.data = data
	} else {
		c.data = append(c.data, data...)
	}
	c.err = err
	c.mu.Unlock()
	select {
	case c.woken <- struct{}{}:
	default:
	}
}

// cancel tells the gateway that the client is gone, if the call is still under way.
func (c *call) cancel() {
	if c.session.forget(c.id) {
		cancelled := &pb.FrontCancel{CallId: c.id}
		c.session.send(&pb.FrontLinkRequest{Message: &pb.FrontLinkRequest_Cancel{Cancel: cancelled}})
	}
}

// Recv returns all that has come since the last call of it, and thereby says that the client has taken what that one returned.
func (c *call) Recv() (*httpbody.HttpBody, error) {
	if c.owed >= creditBytes/2 {
		credit := &pb.FrontCredit{CallId: c.id, Bytes: uint32(c.owed)}
		c.session.send(&pb.FrontLinkRequest{Message: &pb.FrontLinkRequest_Credit{Credit: credit}})
		c.owed = 0
	}
	for {
		c.mu.Lock()
		contentType, data, err := c.contentType, c.data, c.err
		c.data = nil
		c.mu.Unlock()
		if len(data) > 0 {
			c.owed += len(data)
			return &httpbody.HttpBody{ContentType: contentType, Data: data}, nil
		}
		if err != nil {
			return nil, err
		}
		select {
		case <-c.woken:
		case <-c.ctx.Done():
			return nil, status.FromContextError(c.ctx.Err()).Err()
		}
	}
}

// The rest of grpc.ServerStreamingClient, of which the generated handlers use Header alone.

func (c *call) Header() (metadata.MD, error) { return metadata.MD{}, nil }
func (c *call) Trailer() metadata.MD         { return metadata.MD{} }
func (c *call) CloseSend() error             { return nil }
func (c *call) Context() context.Context     { return c.ctx }
func (c *call) SendMsg(any) error            { return errors.ErrUnsupported }
func (c *call) RecvMsg(any) error            { return errors.ErrUnsupported }

// The methods of pb.OpenAiServiceClient.

type bodies = grpc.ServerStreamingClient[httpbody.HttpBody]

func (l *link) CreateCompletion(ctx context.Context, in *httpbody.HttpBody, _ ...grpc.CallOption) (bodies, error) {
	return l.begin(ctx, "CreateCompletion", in)
}

func (l *link) CreateChatCompletion(ctx context.Context, in *httpbody.HttpBody, _ ...grpc.CallOption) (bodies, error) {
	return l.begin(ctx, "CreateChatCompletion", in)
}

func (l *link) ListOpenAiModels(ctx context.Context, in *pb.ListOpenAiModelsRequest, _ ...grpc.CallOption) (bodies, error) {
	return l.begin(ctx, "ListOpenAiModels", in)
}

func (l *link) GetOpenAiModel(ctx context.Context, in *pb.GetOpenAiModelRequest, _ ...grpc.CallOption) (bodies, error) {
	return l.begin(ctx, "GetOpenAiModel", in)
}

func (l *link) GetOpenApi(ctx context.Context, in *pb.GetOpenApiRequest, _ ...grpc.CallOption) (bodies, error) {
	return l.begin(ctx, "GetOpenApi", in)
}
