package main

import (
	_ "embed"
	"encoding/json"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/status"
)

// edgeErrors is written by the gateway's dialect (`make proto`): type and code of the errors that the front itself answers with, by HTTP status.
//
//go:embed edge_errors.json
var edgeErrors []byte

var edgeKinds = func() map[string]kind {
	kinds := map[string]kind{}
	if err := json.Unmarshal(edgeErrors, &kinds); err != nil {
		panic(err)
	}
	return kinds
}()

// Who says what in an ErrorInfo: OpenAI's names of the error, or how a stream that was lost is resumed.
const (
	infoDomain = "openai"
	ownDomain  = "fastserve"
)

// kind is what of an error does not depend on the request.
type kind struct {
	Type string  `json:"type"`
	Code *string `json:"code"`
}

// problem is an error object, with OpenAI's four keys always present, and two more where a stream of Generate ended before its output did.
type problem struct {
	Message         string  `json:"message"`
	Type            string  `json:"type"`
	Param           *string `json:"param"`
	Code            *string `json:"code"`
	RequestID       string  `json:"request_id,omitempty"`
	ResumeFromToken *uint64 `json:"resume_from_token,omitempty"`
}

// refusal is an error as a client gets it. retryAfter is 0 if it need not wait.
type refusal struct {
	status     int
	problem    problem
	retryAfter time.Duration
}

// edgeRefusal is an error of the front itself.
func edgeRefusal(httpStatus int, message string) refusal {
	found, ok := edgeKinds[strconv.Itoa(httpStatus)]
	if !ok && httpStatus < http.StatusInternalServerError {
		found = edgeKinds[strconv.Itoa(http.StatusBadRequest)]
	} else if !ok {
		found = edgeKinds[strconv.Itoa(http.StatusInternalServerError)]
	}
	answer := refusal{status: httpStatus, problem: problem{Message: message, Type: found.Type, Code: found.Code}}
	if httpStatus == http.StatusServiceUnavailable {
		answer.retryAfter = time.Second
	}
	return answer
}

// refusalOf is the answer to a failed call. What the gateway says in the status details goes before the table.
func refusalOf(err error) refusal {
	failed := status.Convert(err)
	answer := edgeRefusal(runtime.HTTPStatusFromCode(failed.Code()), failed.Message())
	for _, detail := range failed.Details() {
		switch said := detail.(type) {
		case *errdetails.ErrorInfo:
			if said.Domain == infoDomain {
				answer.problem.Type = said.Metadata["type"]
				answer.problem.Param, answer.problem.Code = given(said.Metadata["param"]), given(said.Reason)
			}
			if said.Domain == ownDomain {
				answer.problem.RequestID = said.Metadata["request_id"]
				if number, err := strconv.ParseUint(said.Metadata["resume_from_token"], 10, 64); err == nil {
					answer.problem.ResumeFromToken = &number
				}
			}
		case *errdetails.BadRequest:
			if answer.problem.Param == nil && len(said.FieldViolations) > 0 {
				answer.problem.Param = given(said.FieldViolations[0].Field)
			}
		case *errdetails.RetryInfo:
			answer.retryAfter = said.RetryDelay.AsDuration()
		}
	}
	return answer
}

func given(text string) *string {
	if text == "" {
		return nil
	}
	return &text
}

// body is the JSON document of the error, without a line break.
func (r refusal) body() []byte {
	document, err := json.Marshal(map[string]problem{"error": r.problem})
	if err != nil {
		panic(err)
	}
	return document
}

func (r refusal) write(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "application/json")
	if r.status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", "Bearer")
	}
	if r.retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(r.retryAfter.Seconds()))))
	}
	w.WriteHeader(r.status)
	_, _ = w.Write(append(r.body(), '\n'))
}
