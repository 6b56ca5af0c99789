"""The KV manager's part of a job's trace, told turn by turn."""

from services.domain.ids import BlockId, CommandNumber, Epoch, JobId
from services.domain.protocol import BlockMove, Done, Offload, Release, Upload
from services.kvmanager.copy_traces import MOST_SPANS, OFFLOAD, UPLOAD, CopyTraces
from services.kvmanager.machine.kv_manager_events import (
    FromScheduler,
    FromWorker,
    KvWorkerLost,
    SchedulerLost,
    ToWorker,
)
from tests.tracing.memory_tracer import PARENT, MemoryTracer

EPOCH = Epoch(1)
A = JobId("a/0")
MOVES = (BlockMove(0, BlockId(0), BlockId(0)), BlockMove(1, BlockId(1), BlockId(1)))


def offload(number: int, job_id: JobId = A) -> ToWorker:
    return ToWorker(EPOCH, Offload(CommandNumber(number), job_id, MOVES, 20))


def upload(number: int, job_id: JobId = A) -> ToWorker:
    return ToWorker(EPOCH, Upload(CommandNumber(number), job_id, (BlockId(4), BlockId(5)), MOVES, 20))


def done(number: int) -> FromWorker:
    return FromWorker(EPOCH, Done(CommandNumber(number)))


RELEASE = FromScheduler(EPOCH, Release(A))
OVER = ((A, ""),)


def test_copies_are_spans_from_their_command_to_their_end_made_when_the_job_is_over() -> None:
    tracer = MemoryTracer()
    traces = CopyTraces(tracer)
    traces.learn([(A, PARENT)])
    traces.heard(0, [], [offload(1), offload(2, JobId("other"))], 1.0)
    traces.heard(0, [done(1)], [], 2.0)
    traces.heard(0, [], [upload(3)], 5.0)
    traces.heard(0, [done(3), done(2)], [], 6.0)
    assert not tracer.spans
    traces.learn(OVER)
    assert tracer.story() == [(OFFLOAD, 1.0, 2.0), (UPLOAD, 5.0, 6.0)]
    offload_span, upload_span = tracer.spans
    assert offload_span.attributes == upload_span.attributes == {"fastserve.blocks": 2}


def test_a_copy_that_outlasts_its_job_is_waited_for() -> None:
    tracer = MemoryTracer()
    traces = CopyTraces(tracer)
    traces.learn([(A, PARENT)])
    traces.heard(0, [], [offload(1)], 1.0)
    traces.learn(OVER)
    traces.heard(0, [RELEASE], [], 2.0)
    assert not tracer.spans
    traces.heard(0, [done(1)], [], 3.0)
    assert tracer.story() == [(OFFLOAD, 1.0, 3.0)]


def test_a_job_that_moves_from_group_to_group_is_one_job_whose_spans_are_bounded() -> None:
    tracer = MemoryTracer()
    traces = CopyTraces(tracer)
    for number in range(1, 60, 2):
        group, now_s = number % 3, 10.0 * number
        traces.learn([(A, PARENT)])
        traces.heard(group, [], [offload(number)], now_s)
        traces.heard(group, [done(number)], [upload(number + 1)], now_s + 1)
        traces.heard(group, [done(number + 1)], [], now_s + 2)
        traces.heard(group, [RELEASE], [], now_s + 3)
    assert not tracer.spans
    traces.learn(OVER)
    assert len(tracer.spans) == sum(MOST_SPANS.values())


def test_of_a_job_that_goes_on_elsewhere_one_span_of_each_name_is_left() -> None:
    tracer = MemoryTracer()
    traces = CopyTraces(tracer)
    traces.learn([(A, PARENT)])
    for number in (1, 3):
        traces.heard(0, [], [offload(number)], float(number))
        traces.heard(0, [done(number)], [upload(number + 1)], number + 0.5)
        traces.heard(0, [done(number + 1)], [], number + 1.0)
    traces.close(9.0)
    assert tracer.story() == [(OFFLOAD, 1.0, 3.5), (UPLOAD, 1.5, 4.0)]
    first, _ = tracer.spans
    assert first.attributes == {"fastserve.blocks": 4, "fastserve.merged_spans": 2, "fastserve.active_s": 1.0}


def test_a_lost_worker_ends_the_copies_of_its_group_alone() -> None:
    tracer = MemoryTracer()
    traces = CopyTraces(tracer)
    b = JobId("b/0")
    traces.learn([(A, PARENT), (b, PARENT)])
    traces.heard(0, [], [offload(1)], 1.0)
    traces.heard(1, [], [offload(1, b)], 1.0)
    traces.heard(0, [KvWorkerLost(EPOCH)], [], 2.0)
    traces.heard(1, [done(1)], [], 9.0)
    traces.heard(0, [SchedulerLost()], [], 10.0)
    assert tracer.story() == [(OFFLOAD, 1.0, 2.0), (OFFLOAD, 1.0, 9.0)]


def test_however_often_a_job_is_swapped_its_spans_are_bounded() -> None:
    tracer = MemoryTracer()
    traces = CopyTraces(tracer)
    traces.learn([(A, PARENT)])
    for number in range(1, 200, 2):
        traces.heard(0, [done(number - 1)], [offload(number)], float(number))
        traces.heard(0, [done(number)], [upload(number + 1)], number + 1.0)
    traces.heard(0, [done(200), RELEASE], [], 500.0)
    traces.learn(OVER)
    assert len(tracer.spans) == sum(MOST_SPANS.values())
    blocks = [span.attributes["fastserve.blocks"] for span in tracer.spans if span.attributes is not None]
    assert sum(int(str(count)) for count in blocks) == 400
