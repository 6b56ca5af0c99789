"""What the spans of requests take alone, in one process: to record and make them, by service, and to send them.

The records of gateway and scheduler are told requests one after the other, as a server that has nothing else to do; the
spans of a second at 50 requests/s are sent at once. Prints JSON: microseconds of CPU time a request, by second.
"""

import gc
import json
import sys
import time
from array import array

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from benchmarks.spans import REQUESTS_A_SECOND
from benchmarks.tracing import OUTPUT_TOKENS, PROMPT_TOKENS
from services.domain.generation import EndReason, GenerateRequest, SamplingRequest
from services.domain.ids import Epoch, JobId, PlanNumber
from services.domain.job_sampling import JobSampling
from services.domain.protocol import IterationResult, Order, OrderChange, PlanEntry, Rank
from services.domain.submission import Submission
from services.gateway.request_traces import RequestTraces, present_trace
from services.scheduler.job_traces import JobTraces
from services.scheduler.machine.scheduler_events import Command, End, Event, SendPlan, ToKv
from services.tracing.tracer import Tracer

NEVER_MS = 1e9
EPOCH, GROUP, MODEL = Epoch(1), 0, "bundled"
REQUEST = GenerateRequest(sampling=SamplingRequest(max_tokens=OUTPUT_TOKENS, temperature=1.0, seed=1))

Turn = tuple[list[Event], list[Command]]


class Sender:
    """A tracer whose spans are sent when it is told to."""

    def __init__(self) -> None:
        provider = TracerProvider(shutdown_on_exit=False)
        self._processor = BatchSpanProcessor(OTLPSpanExporter(), schedule_delay_millis=NEVER_MS)
        self.tracer = Tracer(provider, self._processor, time.time_ns() - time.monotonic_ns())

    def send(self) -> float:
        """The CPU time of all threads that it took, in seconds."""
        began_s = time.process_time()
        self._processor.force_flush()
        return time.process_time() - began_s


def turns(job_id: JobId) -> list[Turn]:
    """What the scheduler's records hear of a job that has the worker to itself. Two plans are in flight."""
    ranked = ToKv(EPOCH, Order((OrderChange(job_id, Rank(0, 0.0, 1)),)))
    plans: list[Command] = []
    for number in range(OUTPUT_TOKENS):
        start = 0 if number == 0 else PROMPT_TOKENS + number - 1
        plans.append(SendPlan(EPOCH, PlanNumber(number), (PlanEntry(job_id, start, PROMPT_TOKENS + number),)))
    made: list[Turn] = [([], [ranked, plans[0]]), ([], [plans[1]])]
    for number in range(OUTPUT_TOKENS):
        made.append(([IterationResult(EPOCH, PlanNumber(number), (), (), 0.001)], plans[number + 2 : number + 3]))
    made[-1][1].append(End(job_id, EndReason.LENGTH, 1, 0.0, 0.0, 0.0))
    return made


def serve(traces: RequestTraces, number: int) -> str:
    """A request as the gateway's records hear of it. Returns the context of its job."""
    began_s = time.monotonic()
    with traces.call("text_completion", ()):
        trace = present_trace()
        assert trace is not None, "every request is sampled"
        trace.opened(REQUEST, f"request-{number}")
        trace.tokenized(began_s, time.monotonic(), PROMPT_TOKENS)
        trace.ended(EndReason.LENGTH, OUTPUT_TOKENS, time.monotonic())
        return trace.traceparent


def one_second(gateway: Sender, scheduler: Sender, second: int) -> dict[str, float]:
    """Microseconds a request."""
    requests, jobs = RequestTraces(gateway.tracer, MODEL, time.monotonic), JobTraces(scheduler.tracer)
    numbers = range(second * REQUESTS_A_SECOND, (second + 1) * REQUESTS_A_SECOND)
    began_s = time.thread_time()
    contexts = [serve(requests, number) for number in numbers]
    gateway_s = time.thread_time() - began_s
    told = []
    for number, context in zip(numbers, contexts, strict=True):
        job_id = JobId(f"request-{number}/0")
        prompt = array("I", range(PROMPT_TOKENS))
        sampling = JobSampling(max_tokens=OUTPUT_TOKENS, seed=1)
        told.append((Submission(job_id, b"", prompt, sampling, traceparent=context), turns(job_id)))
    began_s = time.thread_time()
    for submission, heard in told:
        jobs.submitted(submission, time.monotonic())
        for events, commands in heard:
            jobs.heard(GROUP, events, commands, time.monotonic())
    spent_s = {"gateway_us": gateway_s, "scheduler_us": time.thread_time() - began_s}
    spent_s["send_us"] = gateway.send() + scheduler.send()
    return {name: seconds / REQUESTS_A_SECOND * 1e6 for name, seconds in spent_s.items()}


def main() -> None:
    """Measures as many seconds as it is told."""
    gateway, scheduler = Sender(), Sender()
    # As a gateway does.
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)
    print(json.dumps([one_second(gateway, scheduler, second) for second in range(int(sys.argv[1]))]))


if __name__ == "__main__":
    main()
