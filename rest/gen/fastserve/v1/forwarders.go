package fastservev1

import (
	"context"
	"net/http"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/protobuf/proto"
)

// Forwarder writes the messages of a stream to an HTTP client. This file alone of its package is written by hand.
type Forwarder = func(
	ctx context.Context, mux *runtime.ServeMux, marshaler runtime.Marshaler, w http.ResponseWriter, r *http.Request,
	receive func() (proto.Message, error), options ...func(context.Context, http.ResponseWriter, proto.Message) error,
)

// UseForwarder replaces grpc-gateway's forwarder, to which errors before the first message are not told apart from later ones.
func UseForwarder(forward Forwarder) {
	forward_OpenAiService_CreateCompletion_0 = forward
	forward_OpenAiService_CreateChatCompletion_0 = forward
	forward_OpenAiService_ListOpenAiModels_0 = forward
	forward_OpenAiService_GetOpenAiModel_0 = forward
	forward_OpenAiService_GetOpenApi_0 = forward
	forward_InferenceService_Generate_0 = forward
	forward_AdminService_WatchStatus_0 = forward
}
