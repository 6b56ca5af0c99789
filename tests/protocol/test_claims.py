"""Who has a group, and with which epoch: the claims of the scheduler, and the KV manager's look at epochs, with two
workers that dial, are paused and wake, and a scheduler that begins again. Every order of what may happen.

Of a worker only what counts here is kept: whether it knows that it has a stream, and with which epoch.
"""

import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from services.domain.errors import GroupTakenError
from services.domain.ids import Epoch
from services.scheduler.routing.worker_claims import WorkerClaims

WORKERS = ("one", "two")
MOST_DIALS = 4
MOST_PAUSES = 1
MOST_RESTARTS = 1
GROUP = 0

Changed = Callable[["ClaimingWorker"], tuple["ClaimingWorker", ...]]
"""All workers, of which the one at hand is changed."""


@dataclass(frozen=True)
class ClaimingWorker:
    """A worker's view: the epoch that it was given, and whether the KV manager has taken it."""

    epoch: int = 0
    is_in: bool = False
    paused: bool = False
    last_epoch: int = 0


@dataclass(frozen=True)
class ClaimState:
    """`open_to`: the worker and epoch of the stream that the scheduler has. `kv`: those of the KV manager's stream, and
    the newest epoch that it has met. `taken`: all (epoch, worker) that the KV manager has taken.
    """

    claims: bytes
    workers: tuple[ClaimingWorker, ...] = (ClaimingWorker(), ClaimingWorker())
    open_to: tuple[str, int] | None = None
    kv_newest: int = 0
    told: bool = True
    taken: tuple[tuple[int, str], ...] = ()
    dials: int = 0
    pauses: int = 0
    restarts: int = 0


def steps(state: ClaimState) -> Iterator[tuple[str, ClaimState]]:
    """All that may happen next."""
    for number, name in enumerate(WORKERS):
        held = state.workers[number]

        def changed(to: ClaimingWorker, number: int = number) -> tuple[ClaimingWorker, ...]:
            return tuple(to if one == number else other for one, other in enumerate(state.workers))

        if held.paused:
            yield f"{name} wakes", replace(state, workers=changed(replace(held, paused=False)))
            continue
        if not held.epoch and state.dials < MOST_DIALS:
            yield f"{name} dials", dialled(state, name, number, changed)
        if held.epoch and not held.is_in:
            yield f"{name} joins", joined(state, name, held, changed)
        if held.epoch and state.open_to != (name, held.epoch):
            yield f"{name} learns that its stream is gone", replace(state, workers=changed(ended(held)))
        if held.epoch and state.pauses < MOST_PAUSES:
            paused = replace(state, workers=changed(replace(held, paused=True)), pauses=state.pauses + 1)
            yield f"{name} is paused", paused
    if state.open_to is not None:
        name, epoch = state.open_to
        if state.workers[WORKERS.index(name)].paused or state.workers[WORKERS.index(name)].epoch != epoch:
            yield "the scheduler notices the loss", lost(state)
    if state.restarts < MOST_RESTARTS:
        fresh = pickle.dumps(WorkerClaims())
        yield (
            "the scheduler begins again",
            replace(state, claims=fresh, open_to=None, told=False, restarts=state.restarts + 1),
        )
    if not state.told:
        yield "the scheduler hears what the KV manager has met", heard(state)


def ended(held: ClaimingWorker) -> ClaimingWorker:
    return ClaimingWorker(last_epoch=held.last_epoch, paused=held.paused)


def dialled(state: ClaimState, name: str, number: int, changed: Changed) -> ClaimState:
    claims: WorkerClaims = pickle.loads(state.claims)
    state = replace(state, dials=state.dials + 1)
    last = Epoch(state.workers[number].last_epoch)
    try:
        epoch = claims.claim(GROUP, name, last, "cpu", 0.0)
    except GroupTakenError:
        return state
    if state.open_to is not None and state.open_to[0] != name:
        first = state.workers[WORKERS.index(state.open_to[0])]
        assert first.paused or first.epoch != state.open_to[1], f"{state.open_to[0]} is thrown out while it works"
    held = ClaimingWorker(epoch, last_epoch=epoch)
    return replace(state, claims=pickle.dumps(claims), workers=changed(held), open_to=(name, epoch))


def joined(state: ClaimState, name: str, held: ClaimingWorker, changed: Changed) -> ClaimState:
    """The worker dials the KV manager."""
    if not kv_takes(held.epoch, state.kv_newest):
        return replace(state, workers=changed(ended(held)))
    assert held.epoch not in [epoch for epoch, _ in state.taken], f"epoch {held.epoch} begins twice"
    taken = (*state.taken, (held.epoch, name))
    return replace(state, workers=changed(replace(held, is_in=True)), kv_newest=held.epoch, taken=taken)


def kv_takes(epoch: int, newest: int) -> bool:
    """As KvGroup.check_epoch."""
    return epoch > newest


def lost(state: ClaimState) -> ClaimState:
    claims: WorkerClaims = pickle.loads(state.claims)
    assert state.open_to is not None
    claims.release(GROUP, Epoch(state.open_to[1]))
    return replace(state, claims=pickle.dumps(claims), open_to=None)


def heard(state: ClaimState) -> ClaimState:
    claims: WorkerClaims = pickle.loads(state.claims)
    is_outlived = claims.outlived_by(Epoch(state.kv_newest))
    if is_outlived and state.open_to is not None:
        claims.release(GROUP, Epoch(state.open_to[1]))
    open_to = None if is_outlived else state.open_to
    return replace(state, claims=pickle.dumps(claims), told=True, open_to=open_to)


def check(state: ClaimState) -> None:
    """No two workers are both at work: in, awake, and with the stream that the scheduler has."""
    at_work = [
        name
        for name, held in zip(WORKERS, state.workers, strict=True)
        if held.is_in and held.epoch == state.kv_newest and state.open_to == (name, held.epoch)
    ]
    assert len(at_work) <= 1


def explore() -> tuple[int, int]:
    """Numbers of states, and of those at which a worker is at work. Raises AssertionError."""
    start = ClaimState(pickle.dumps(WorkerClaims()))
    ways: dict[Any, tuple[str, ...]] = {start: ()}
    waiting, at_work = [start], 0
    for state in waiting:
        goes_on = False
        for name, after in steps(state):
            goes_on = goes_on or after != state
            check(after)
            if after not in ways:
                ways[after] = (*ways[state], name)
                waiting.append(after)
        serving = state.open_to is not None and any(
            held.is_in and (name, held.epoch) == state.open_to
            for name, held in zip(WORKERS, state.workers, strict=True)
        )
        at_work += serving
        assert goes_on or serving or state.dials == MOST_DIALS, "nothing goes on\n" + "\n".join(ways[state])
    return len(ways), at_work


def test_rules_39_and_40_no_two_workers_are_ever_at_work_and_no_epoch_is_ever_used_twice() -> None:
    states, at_work = explore()
    assert states > at_work > 100


def let_the_last_one_win(patch: pytest.MonkeyPatch) -> None:
    """[39 first-claim-holds] whoever claims a group gets it."""
    claim = WorkerClaims.claim

    def always(self: WorkerClaims, group: int, *others: Any) -> Epoch:
        self._claims.pop(group, None)
        return claim(self, group, *others)

    patch.setattr(WorkerClaims, "claim", always)


def begin_again_from_one(patch: pytest.MonkeyPatch) -> None:
    """[40 scheduler-names-epochs] a scheduler that begins again gives out what was given out before."""
    claim = WorkerClaims.claim

    def unknowing(self: WorkerClaims, group: int, worker_id: str, last_epoch: Epoch, *others: Any) -> Epoch:
        return claim(self, group, worker_id, Epoch(0), *others)

    patch.setattr(WorkerClaims, "claim", unknowing)
    patch.setattr(WorkerClaims, "outlived_by", lambda self, met: False)
    patch.setattr("tests.protocol.test_claims.kv_takes", lambda epoch, newest: True)


@pytest.mark.parametrize(
    ("break_it", "mishap"), [(let_the_last_one_win, "is thrown out"), (begin_again_from_one, "epoch 1 begins twice")]
)
def test_without_the_rule_there_is_a_way_to_the_mishap(
    break_it: Callable[[pytest.MonkeyPatch], None], mishap: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_it(monkeypatch)
    with pytest.raises(AssertionError, match=mishap):
        explore()
