"""The scheduler's part of a job's trace, told turn by turn."""

from array import array
from collections.abc import Sequence

from services.domain.generation import EndReason
from services.domain.ids import Epoch, JobId, PlanNumber
from services.domain.job_sampling import JobSampling
from services.domain.protocol import (
    Arrive,
    ArrivedJob,
    IterationResult,
    Jobs,
    Order,
    OrderChange,
    PlanEntry,
    Rank,
    Release,
)
from services.domain.submission import Submission
from services.kvmanager import copy_traces
from services.scheduler.gateways import Gateways
from services.scheduler.job_traces import (
    DECODE,
    JOB,
    LEVEL,
    MOST_KV_LIVES,
    MOST_SPANS,
    PREFILL,
    QUEUE,
    RECOMPUTE,
    JobTraces,
)
from services.scheduler.machine.scheduler_events import (
    Command,
    End,
    Event,
    KvLost,
    Reject,
    RejectKind,
    SendPlan,
    ToKv,
    WorkerLost,
)
from services.scheduler.outgoing_streams import GatewayStream
from services.scheduler.scheduler_inbox import Submitted
from tests.tracing.memory_tracer import PARENT, MemoryTracer

EPOCH = Epoch(1)
A = JobId("a/0")


def submission(job_id: JobId = A, traceparent: str = PARENT) -> Submission:
    sampling = JobSampling(max_tokens=64, seed=1)
    return Submission(job_id, b"", array("I", range(10)), sampling, traceparent=traceparent)


def plan(number: int, from_token: int, to_token: int, job_id: JobId = A) -> SendPlan:
    return SendPlan(EPOCH, PlanNumber(number), (PlanEntry(job_id, from_token, to_token),))


def result(number: int, cut: tuple[JobId, ...] = ()) -> IterationResult:
    return IterationResult(EPOCH, PlanNumber(number), (), cut, 0.1)


def level(number: int, job_id: JobId = A) -> ToKv:
    return ToKv(EPOCH, Order((OrderChange(job_id, Rank(number, 0.0, 1)),)))


def end(job_id: JobId = A) -> End:
    return End(job_id, EndReason.LENGTH, 1, 0.0, 0.0, 0.0)


class Told:
    """A tracer and the traces of one group's turns."""

    def __init__(self) -> None:
        self.tracer = MemoryTracer()
        self.traces = JobTraces(self.tracer)

    def turn(
        self, now_s: float, events: Sequence[Event] = (), commands: Sequence[Command] = (), group: int = 0
    ) -> None:
        self.traces.heard(group, events, commands, now_s)

    def spans(self, name: str) -> list[tuple[float, float]]:
        return [(start_s, end_s) for one, start_s, end_s in self.tracer.story() if one == name]


def test_a_job_waits_is_prefilled_decodes_is_preempted_recomputed_and_ends() -> None:
    told = Told()
    told.traces.submitted(submission(), 1.0)
    told.turn(1.0, commands=[level(0)])
    told.turn(2.0, commands=[plan(1, 0, 10)])
    told.turn(2.5, commands=[plan(2, 10, 11)])  # made before the first token is known
    told.turn(3.0, [result(1)], [plan(3, 11, 12)])
    told.turn(3.5, [result(2)])
    told.turn(4.0, [result(3)], [level(1)])  # demoted, and preempted
    told.turn(7.0, commands=[plan(4, 0, 13)])
    told.turn(8.0, [result(4)], [plan(5, 13, 14)])
    told.turn(9.0, [result(5)], [end()])
    assert told.spans(QUEUE) == [(1.0, 2.0)]
    assert told.spans(PREFILL) == [(2.0, 3.0)]
    assert told.spans(DECODE) == [(3.0, 4.0), (8.0, 9.0)]
    assert told.spans(RECOMPUTE) == [(7.0, 8.0)]
    assert told.spans(LEVEL) == [(1.0, 4.0), (4.0, 9.0)]
    assert told.spans(JOB) == [(1.0, 9.0)]
    decodes = [span.attributes for span in told.tracer.spans if span.name == DECODE]
    assert decodes == [{"fastserve.tokens": 2}, {"fastserve.tokens": 1}]
    job = next(span for span in told.tracer.spans if span.name == JOB)
    assert job.attributes == {
        "fastserve.job_id": "a/0", "gen_ai.usage.input_tokens": 10, "fastserve.end": EndReason.LENGTH.value
    }  # fmt: skip


def test_a_lost_worker_is_an_event_and_what_comes_after_is_recomputation() -> None:
    told = Told()
    told.traces.submitted(submission(), 0.0)
    told.turn(1.0, commands=[plan(1, 0, 10)])
    told.turn(2.0, [result(1)], [plan(2, 10, 11)])
    told.turn(3.0, [WorkerLost(EPOCH)])
    told.turn(4.0, [result(2)])  # of the old epoch: too late
    told.turn(5.0, commands=[plan(1, 0, 11)])
    told.turn(6.0, [result(1)], [end()])
    assert told.spans(RECOMPUTE) == [(5.0, 6.0)]
    assert told.spans(DECODE) == []
    job = next(span for span in told.tracer.spans if span.name == JOB)
    assert [event.name for event in job.events] == ["fastserve.epoch_ended"]


def test_a_prefill_that_was_cut_computed_nothing() -> None:
    told = Told()
    told.traces.submitted(submission(), 0.0)
    told.turn(1.0, commands=[plan(1, 0, 10)])
    told.turn(2.0, [result(1, cut=(A,))], [plan(2, 0, 10)])
    told.turn(3.0, [result(2)], [end()])
    assert told.spans(PREFILL) == [(2.0, 3.0)]
    assert told.spans(RECOMPUTE) == []


def test_however_often_a_job_is_preempted_its_spans_are_bounded() -> None:
    told = Told()
    told.traces.submitted(submission(), 0.0)
    for number in range(1, 401):
        told.turn(10.0 * number, commands=[plan(number, 9 + number, 10 + number), level(number % 5)])
        told.turn(10.0 * number + 1, [result(number)])
    told.turn(5000.0, commands=[end()])
    assert len(told.tracer.spans) <= 1 + sum(MOST_SPANS.values()) < 64
    tokens = [
        span.attributes["fastserve.tokens"] for span in told.tracer.spans if span.name == DECODE and span.attributes
    ]
    assert sum(int(str(count)) for count in tokens) == 400


def test_a_job_without_a_context_leaves_no_span_and_one_that_is_refused_leaves_one() -> None:
    told = Told()
    told.traces.submitted(submission(JobId("b/0"), traceparent=""), 0.0)
    told.turn(1.0, commands=[plan(1, 0, 10, JobId("b/0")), end(JobId("b/0"))])
    assert told.tracer.spans == ()
    told.traces.submitted(submission(), 2.0)
    told.traces.ended(A, 3.0, "rejected: full")
    assert told.tracer.story() == [(JOB, 2.0, 3.0), (QUEUE, 2.0, 3.0)]


def test_a_job_that_ends_before_it_had_a_group_ends_its_trace() -> None:
    tracer = MemoryTracer()
    gateways, peer = Gateways(1000, JobTraces(tracer)), GatewayStream("g")
    gateways.join(peer, 0.0)
    gateways.submit(Submitted(peer, submission()), False, 1.0)
    gateways.end(End(A, EndReason.CANCELLED, 0, 0.5, 0.0, 0.0), 2.0)
    gateways.submit(Submitted(peer, submission()), False, 3.0)
    gateways.reject(Reject(A, RejectKind.FULL, "", "full", 1.0), 4.0)
    assert tracer.story() == [(JOB, 1.0, 2.0), (QUEUE, 1.0, 2.0), (JOB, 3.0, 4.0), (QUEUE, 3.0, 4.0)]
    ends = [span.attributes["fastserve.end"] for span in tracer.spans if span.name == JOB and span.attributes]
    assert ends == ["cancelled", "rejected: full"]


def test_the_kv_manager_hears_the_context_with_the_message_that_announces_the_job() -> None:
    told = Told()
    other = JobId("b/0")
    arrivals = [Arrive(ArrivedJob(job_id, 10, 73, 1)) for job_id in (A, other)]
    assert told.traces.contexts(arrivals) == []
    told.traces.submitted(submission(), 0.0)
    ((job_id, context),) = told.traces.contexts([*arrivals, Order(())])
    assert (job_id, context.split("-")[1]) == (A, PARENT.split("-")[1])
    assert context != PARENT


def test_the_kv_manager_hears_that_a_job_is_over_when_it_has_ended_and_not_when_it_moves() -> None:
    told = Told()
    arrival, release = Arrive(ArrivedJob(A, 10, 73, 1)), Release(A)
    told.traces.submitted(submission(), 0.0)
    (announced,) = told.traces.contexts([arrival])
    assert told.traces.contexts([release]) == []  # it moves to another group
    assert told.traces.contexts([arrival]) == [announced]
    told.turn(1.0, commands=[end()])
    assert told.traces.contexts([Order(())]) == []
    assert told.traces.contexts([release]) == [(A, "")]
    assert told.traces.contexts([release]) == []


def test_a_job_whose_release_nobody_waits_for_is_over_with_the_next_epoch() -> None:
    told = Told()
    told.traces.submitted(submission(), 0.0)
    told.traces.contexts([Arrive(ArrivedJob(A, 10, 73, 1))])
    told.turn(1.0, [WorkerLost(EPOCH)], [end()])
    assert told.traces.contexts([Jobs(EPOCH, (), (), 8, (), None)]) == [(A, "")]


def test_of_a_job_that_is_handed_over_one_span_of_each_name_is_left() -> None:
    told = Told()
    told.traces.submitted(submission(), 0.0)
    for number in range(1, 5):
        told.turn(10.0 * number, commands=[plan(number, 9 + number, 10 + number), level(number)])
        told.turn(10.0 * number + 1, [result(number)])
    told.traces.close(50.0)
    assert told.tracer.story() == [
        (QUEUE, 0.0, 10.0), (JOB, 0.0, 50.0), (DECODE, 10.0, 41.0), (LEVEL, 10.0, 50.0),
    ]  # fmt: skip


def test_only_so_many_kv_managers_hear_of_a_job() -> None:
    told = Told()
    told.traces.submitted(submission(), 0.0)
    heard = []
    for _ in range(MOST_KV_LIVES + 2):
        heard.append(len(told.traces.contexts([Arrive(ArrivedJob(A, 10, 73, 1))])))
        told.turn(1.0, [KvLost()])
    assert heard == [1] * MOST_KV_LIVES + [0, 0]


def test_a_trace_has_at_most_64_spans_a_job_whoever_ends_meanwhile() -> None:
    of_gateway, of_kv = 2, sum(copy_traces.MOST_SPANS.values())
    of_kv_that_ended = len(copy_traces.MOST_SPANS)
    handed_over = 1 + len(MOST_SPANS) + MOST_KV_LIVES * of_kv_that_ended
    ended_here = 1 + sum(MOST_SPANS.values()) + (MOST_KV_LIVES - 1) * of_kv_that_ended + of_kv
    assert of_gateway + handed_over + ended_here <= 64
