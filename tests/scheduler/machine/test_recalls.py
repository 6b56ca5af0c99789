"""Plans made ahead are recalled when somebody comes or goes (rule 42), so that nobody waits for all of them."""

import pytest

from services.domain.errors import ProtocolError
from services.domain.generation import EndReason
from services.domain.ids import Epoch, JobId
from services.domain.protocol import Ack, Finished, Planned, PlansGivenBack, Recalled, Release
from services.scheduler.job import LoanKind
from services.scheduler.machine.plan_lead import MOST_AHEAD, MOST_AHEAD_ALONE
from services.scheduler.machine.scheduler_events import (
    Cancel,
    Command,
    Emit,
    KvConnected,
    RecallPlans,
    SendPlan,
    Submit,
)
from tests.scheduler.machine.checked_scheduler import (
    EPOCH,
    CheckedScheduler,
    entries,
    fcfs,
    joined,
    plans,
    shape,
    told,
)
from tests.scheduler.machine.events_from_kv import A, B, C, reclaim, resident
from tests.scheduler.machine.short_iterations import SHORT_S, short_iterations, under_way

LEAST = 2
"""Plans that are never recalled."""


def recalls(commands: list[Command]) -> list[RecallPlans]:
    return [command for command in commands if isinstance(command, RecallPlans)]


def waiting(machine: CheckedScheduler) -> list[SendPlan]:
    """The plans under way, oldest first."""
    numbers = {flight.plan_number for flight in machine.scheduler.iterations.unfinished}
    return [plan for plan in plans(machine.commands) if plan.plan_number in numbers]


def given_back(first: SendPlan | None, epoch: int = EPOCH) -> PlansGivenBack:
    """The worker's answer: it gives back this plan and those behind it."""
    return PlansGivenBack(Epoch(epoch), None if first is None else first.plan_number)


def recalling() -> tuple[CheckedScheduler, list[SendPlan]]:
    """A runs alone, with many plans ahead, when B comes to the device; and the plans that are under way then."""
    machine = short_iterations(A)
    machine.turn(Submit(B, 10, 100))
    ahead = waiting(machine)
    assert recalls(machine.turn(resident(B))) == [RecallPlans(EPOCH, ahead[LEAST].plan_number)]
    return machine, ahead


def test_who_comes_to_the_device_runs_after_the_plans_that_the_worker_keeps() -> None:
    machine, ahead = recalling()
    made = plans(machine.turn(given_back(ahead[3])))
    last = ahead[2].entries[0].to_token
    assert [entries(plan) for plan in made] == [
        [(A, last, last + 1), (B, 0, 10)],
        [(A, last + 1, last + 2), (B, 10, 11)],
    ]


def test_the_lead_is_short_after_a_recall_and_grows_with_the_time_since_then() -> None:
    machine, ahead = recalling()
    machine.turn(given_back(ahead[3]))
    assert under_way(machine) == 3 + LEAST
    machine.turn(machine.result(ahead[0], duration_s=SHORT_S), at_s=machine.now_s + 5.5 * SHORT_S)
    assert under_way(machine) == 2 + 5
    machine.turn(machine.result(ahead[1], duration_s=SHORT_S), at_s=machine.now_s + 100.0 * SHORT_S)
    assert under_way(machine) == 1 + MOST_AHEAD


def test_no_plan_is_made_before_the_worker_has_answered() -> None:
    machine, ahead = recalling()
    for plan in ahead[:LEAST]:
        assert plans(machine.turn(machine.result(plan, duration_s=SHORT_S))) == []
    assert plans(machine.turn(given_back(ahead[LEAST]))) != []


def test_the_kv_manager_hears_of_them_the_newest_first_and_before_the_new_plans() -> None:
    machine, ahead = recalling()
    messages = told(machine.turn(given_back(ahead[3])))
    numbers = [plan.plan_number for plan in ahead[3:]]
    assert messages[: len(numbers)] == [Recalled(number) for number in reversed(numbers)]
    assert isinstance(messages[len(numbers)], Planned)


def test_plans_that_come_back_are_made_again_with_other_numbers() -> None:
    machine, ahead = recalling()
    first, *_ = plans(machine.turn(given_back(ahead[3])))
    assert first.plan_number == ahead[-1].plan_number + 1


def test_a_worker_that_has_begun_them_all_gives_back_none_and_they_end_as_ever() -> None:
    machine, ahead = recalling()
    made = plans(machine.turn(given_back(None)))
    assert [B in shape(plan) for plan in made] == [True] * LEAST
    for plan in ahead:
        machine.turn(machine.result(plan, duration_s=SHORT_S))
    assert waiting(machine)[0] == made[0]


@pytest.mark.parametrize("kept", [LEAST, 5, MOST_AHEAD_ALONE])
def test_no_token_is_lost_or_made_twice_however_many_come_back(kept: int) -> None:
    machine, ahead = recalling()
    machine.turn(given_back(ahead[kept] if kept < len(ahead) else None))
    while machine.scheduler.jobs:
        machine.turn(machine.result(waiting(machine)[0], duration_s=SHORT_S))
    made = [command.token_number for command in machine.commands if isinstance(command, Emit)]
    assert sorted(made) == sorted([*range(100), *range(100)])


def test_who_would_not_run_recalls_nothing() -> None:
    machine = short_iterations(A, B, config=fcfs(max_batch=2))
    machine.turn(Submit(C, 10, 100))
    assert recalls(machine.turn(resident(C))) == []


def test_a_fixed_number_of_plans_in_flight_is_not_recalled() -> None:
    machine = short_iterations(A, config=fcfs(plans_in_flight=4))
    machine.turn(Submit(B, 10, 100))
    assert recalls(machine.turn(resident(B))) == []


def test_a_prefill_is_not_put_off_by_those_that_come_after_it() -> None:
    machine, ahead = recalling()
    starting = plans(machine.turn(given_back(ahead[3])))
    machine.turn(Submit(C, 10, 100), at_s=machine.now_s + 100.0 * SHORT_S)
    assert recalls(machine.turn(resident(C))) == [RecallPlans(EPOCH, starting[1].plan_number)], "behind B's prefill"


def test_plans_do_not_pile_up_however_many_jobs_come_while_one_iteration_is_run() -> None:
    machine, ahead = recalling()
    machine.turn(given_back(ahead[LEAST]))
    for number in range(60):
        name = JobId(f"newcomer-{number}")
        machine.turn(Submit(name, 10, 100), at_s=machine.now_s + 0.1 * SHORT_S)
        for recall in recalls(machine.turn(resident(name))):
            machine.turn(PlansGivenBack(EPOCH, recall.first_plan_number))
        assert under_way(machine) <= MOST_AHEAD


def test_a_plan_with_a_loan_in_it_is_sure_to_run() -> None:
    machine = short_iterations(A, B)
    last = waiting(machine)[-1]
    machine.scheduler.lending.lend(LoanKind.SILENCE, machine.scheduler.jobs[B], 1, 0.0)
    machine.turn(machine.result(waiting(machine)[0], duration_s=SHORT_S))
    assert under_way(machine) == MOST_AHEAD
    machine.turn(Submit(C, 10, 100))
    assert recalls(machine.turn(resident(C))) == [], "the last plan is the loan's"
    assert waiting(machine)[-1].plan_number == last.plan_number + 1


def test_the_blocks_of_a_job_are_given_up_when_the_plans_that_are_kept_have_ended() -> None:
    machine = short_iterations(A, B)
    ahead = waiting(machine)
    assert recalls(machine.turn(reclaim(A))) == [RecallPlans(EPOCH, ahead[LEAST].plan_number)]
    machine.turn(given_back(ahead[LEAST]))
    turn = machine.turn(machine.result(ahead[0], duration_s=SHORT_S))
    assert [list(shape(plan)) for plan in plans(turn)] == [[B]]
    assert Ack(A) not in told(turn)
    assert Ack(A) in told(machine.turn(machine.result(ahead[1], duration_s=SHORT_S)))


def test_the_place_of_one_that_ended_early_goes_to_the_next_one() -> None:
    machine = short_iterations(A, B, config=fcfs(max_batch=1))
    while A not in shape(waiting(machine)[-1]):
        machine.turn(machine.result(waiting(machine)[0], duration_s=SHORT_S))
    ahead = waiting(machine)
    assert recalls(machine.turn(machine.result(ahead[0], duration_s=SHORT_S, ends=[A]))) == [
        RecallPlans(EPOCH, ahead[LEAST + 1].plan_number)
    ]
    assert B in shape(plans(machine.turn(given_back(ahead[LEAST + 2])))[0])


def test_a_job_that_ended_is_released_with_the_last_plan_that_is_kept() -> None:
    machine, ahead = recalling()
    machine.turn(Cancel(A, EndReason.CANCELLED))
    machine.turn(given_back(ahead[LEAST]))
    machine.turn(machine.result(ahead[0], duration_s=SHORT_S, silent=[A]))
    last = told(machine.turn(machine.result(ahead[1], duration_s=SHORT_S, silent=[A])))
    assert last[:2] == [Finished(ahead[1].plan_number), Release(A)]


def test_what_a_worker_was_asked_for_is_forgotten_with_it() -> None:
    machine, ahead = recalling()
    machine.turn(joined(epoch=EPOCH + 1), KvConnected())
    assert plans(machine.turn(given_back(ahead[LEAST]))) == [], "of the earlier epoch"
    assert len(plans(machine.turn(resident(A, epoch=Epoch(EPOCH + 1))))) == LEAST


def test_plans_that_were_not_asked_for_are_refused() -> None:
    machine = short_iterations(A)
    with pytest.raises(ProtocolError, match="was not asked for any"):
        machine.turn(given_back(waiting(machine)[-1]))


def test_plans_that_were_not_recalled_are_refused() -> None:
    machine, ahead = recalling()
    starting = plans(machine.turn(given_back(ahead[3])))
    machine.turn(Submit(C, 10, 100))
    machine.turn(resident(C))
    with pytest.raises(ProtocolError, match=f"plan {starting[0].plan_number}, which was not recalled"):
        machine.turn(given_back(starting[0]))
