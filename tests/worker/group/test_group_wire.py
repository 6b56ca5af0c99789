"""What leader and ranks tell each other comes back from the wire as it was sent."""

import pytest

from services.domain.errors import PeerMismatchError, ProtocolError
from services.domain.generation import TokenLogprob
from services.domain.ids import CommandNumber, JobId, PlanNumber
from services.domain.iteration import WorkerCounters
from services.worker.group.group_wire import (
    LENGTH_BYTES,
    MOST_FRAME_BYTES,
    PING_FRAME,
    PONG_FRAME,
    from_rank_frame,
    from_rank_of,
    hello_frame,
    hello_of,
    layers_frame,
    layers_of,
    length_of,
    question_frame,
    question_of,
    refusal_frame,
    to_rank_frame,
    to_rank_of,
    welcome_frame,
    welcome_of,
)
from services.worker.group.messages import (
    Begin,
    Copied,
    Failed,
    FromRank,
    Ran,
    RankFacts,
    RankIdentity,
    Ready,
    Relayed,
    Run,
    Scored,
    ToRank,
)
from services.worker.step import Step, StepOutcome
from tests.worker.group.group_values import (
    BEGIN,
    EPOCH,
    JOB,
    SCORED,
    assign,
    decode,
    offload,
    plan,
    prefill,
    release,
    token,
)

STEP = Step(plan(3, prefill(2), decode(5)), frozenset({JobId("b/0"), JobId("c/0")}), {JOB: 42})
OUTCOME = StepOutcome((token(7), token(8, end=True)), {JOB: TokenLogprob(7, -0.5, ())}, (), 0.25, 0.0)


def body(frame: bytes) -> bytes:
    """The message of a frame."""
    assert length_of(frame[:LENGTH_BYTES]) == len(frame) - LENGTH_BYTES
    return frame[LENGTH_BYTES:]


@pytest.mark.parametrize(
    "message",
    [
        BEGIN,
        Begin(EPOCH, 4000, 3.0, measures=True),
        Relayed(EPOCH, assign(1)),
        Relayed(EPOCH, offload(2)),
        Relayed(EPOCH, release(3)),
        Run(EPOCH, STEP),
    ],
    ids=lambda message: type(message).__name__,
)
def test_what_the_leader_says_comes_back_as_it_was_sent(message: ToRank) -> None:
    assert to_rank_of(body(to_rank_frame(message))) == message


@pytest.mark.parametrize(
    "message",
    [
        Ready(EPOCH),
        Copied(EPOCH, CommandNumber(5)),
        Ran(EPOCH, PlanNumber(3), OUTCOME, WorkerCounters(1.0, 2.0, 3.0, 4, 5)),
        Failed(EPOCH, "rank 1 is gone"),
        Scored(EPOCH, SCORED),
    ],
    ids=lambda message: type(message).__name__,
)
def test_what_a_rank_says_comes_back_as_it_was_sent(message: FromRank) -> None:
    assert from_rank_of(body(from_rank_frame(message))) == message


def test_a_hello_and_its_answers_come_back_as_they_were_sent() -> None:
    identity = RankIdentity(1, 2, 3, "abc", "float32", 16, model="tiny")
    loaded = (4096, (0, 2, 4), 100, 400, 1 << 40)
    facts = RankFacts(1, 2, 3, "abc", "float32", 16, *loaded, model="tiny", kernels="torch", weights="int8")
    assert hello_of(body(hello_frame(facts))) == facts
    assert question_of(body(question_frame(identity))) == identity
    assert question_of(body(hello_frame(facts))) is None
    assert layers_of(body(layers_frame((0, 2, 4)))) == (0, 2, 4)
    assert welcome_of(body(welcome_frame(3.5))) == 3.5
    with pytest.raises(PeerMismatchError, match="dtype: is float32"):
        welcome_of(body(refusal_frame("dtype", "is float32")))
    with pytest.raises(PeerMismatchError, match="dtype: is float32"):
        layers_of(body(refusal_frame("dtype", "is float32")))


def test_signs_of_life_are_no_messages() -> None:
    assert to_rank_of(body(PING_FRAME)) is None
    assert from_rank_of(body(PONG_FRAME)) is None


def test_what_is_no_message_breaks_the_protocol() -> None:
    for read in (to_rank_of, from_rank_of, hello_of, welcome_of, layers_of):
        for data in (b"\xff\xff", b""):
            with pytest.raises(ProtocolError):
                read(data)
    with pytest.raises(ProtocolError, match="more than"):
        length_of((MOST_FRAME_BYTES + 1).to_bytes(LENGTH_BYTES, "big"))
