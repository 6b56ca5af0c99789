"""The four KV policies: what each does when the device pool is full, and what proactive does before that."""

import pytest

from services.domain.protocol import Assign, KvToScheduler, Offload, ReleaseBlocks, Upload
from services.kvmanager.machine.kv_job import KvState
from services.kvmanager.policies.kv_config import kv_policy_named
from services.kvmanager.policies.kv_policy import ReserveFacts
from tests.kvmanager.machine.checked_kv_manager import CheckedKvManager, grown, knobs, reclaim, resident

BURST_LEVELS = (1.0, 2.0, 4.0, 8.0)

# --- defer -----------------------------------------------------------------------------------------------------------


def test_defer_gives_blocks_for_prompt_and_all_tokens_to_come() -> None:
    kv = CheckedKvManager("defer", device=8)
    assert kv.settle(kv.arrive("a", 2, 5)) == [resident("a", 5)]
    assert kv.free() == (3, 8)


def test_defer_lets_a_job_wait_that_does_not_fit_and_serves_nobody_behind_it() -> None:
    kv = CheckedKvManager("defer", device=8)
    kv.settle(kv.arrive("a", 2, 5))
    assert kv.arrive("b", 2, 4) == []
    assert kv.arrive("c", 1, 1) == []
    heard = kv.settle(kv.release("a"))
    assert heard == [resident("b", 4), resident("c", 1)]


def test_defer_takes_nothing_from_a_job_of_lower_rank() -> None:
    kv = CheckedKvManager("defer", device=4)
    kv.bring("low", 2, 4)
    assert kv.arrive("high", 2, 4, key=-1.0) == []
    assert kv.state("low") is KvState.DEVICE


# --- recompute -------------------------------------------------------------------------------------------------------


def test_recompute_drops_the_lower_jobs_kv_and_makes_it_again_later() -> None:
    kv = CheckedKvManager("recompute", device=4)
    kv.bring("low", 3, 4)
    assert kv.arrive("high", 2, 2, key=-1.0) == [reclaim("low", "high")]
    released, assigned = kv.ack("low")
    assert isinstance(released, ReleaseBlocks)
    assert isinstance(assigned, Assign)
    assert (released.job_id, assigned.job_id) == ("low", "high")
    assert kv.state("low") is KvState.WAITING
    kv.settle([assigned])
    # All four of its tokens must be recomputed: the three it had, and the one that was sampled.
    assert kv.settle(kv.release("high")) == [resident("low", 4, valid=0)]


# --- reactive --------------------------------------------------------------------------------------------------------


def test_reactive_offloads_the_lower_jobs_kv_and_uploads_it_when_there_is_room() -> None:
    kv = CheckedKvManager("reactive", device=4)
    kv.bring("low", 3, 4)
    assert kv.arrive("high", 2, 2, key=-1.0) == [reclaim("low", "high")]
    [offload] = kv.ack("low")
    assert isinstance(offload, Offload)
    assert offload.valid_tokens == 3
    assert len(offload.moves) == 3
    assert kv.settle([offload]) == [resident("high", 2)]
    [_, upload] = kv.release("high")
    assert isinstance(upload, Upload)
    assert len(upload.device_blocks) == 4
    assert [move.table_index for move in upload.moves] == [0, 1, 2]
    assert kv.settle([upload]) == [resident("low", 4, valid=3)]
    assert kv.free() == (0, 8)


@pytest.mark.parametrize("policy", ["recompute", "reactive"])
def test_without_need_nothing_is_moved_ahead(policy: str) -> None:
    kv = CheckedKvManager(policy, device=6, max_batch=1)
    kv.bring("a", 3, 4, level=1)
    kv.bring("b", 1, 2, level=0)
    assert kv.state("a") is KvState.DEVICE
    assert kv.settle(kv.run(("b", 1, 2))) == []


def test_only_a_job_that_would_run_now_takes_blocks_from_others() -> None:
    kv = CheckedKvManager("reactive", device=4, max_batch=1)
    kv.bring("low", 3, 4, level=3)
    kv.arrive("first", 1, 1, level=0)
    assert kv.arrive("second", 2, 2, level=1) == []


def test_a_reclaim_takes_the_lowest_job_and_no_more_than_needed() -> None:
    kv = CheckedKvManager("reactive", device=6)
    for name in ("a", "b", "c"):
        kv.bring(name, 2, 2)
    assert kv.arrive("top", 2, 2, key=-1.0) == [reclaim("c", "top")]
    assert kv.arrive("second", 2, 2, key=-0.5) == [reclaim("b", "second")]


def test_a_job_in_no_plan_is_taken_before_a_lower_one_that_runs() -> None:
    kv = CheckedKvManager("reactive", device=6)
    for name in ("a", "b", "c"):
        kv.bring(name, 2, 2)
    kv.plan(("c", 1, 2))
    assert kv.arrive("top", 2, 2, key=-1.0) == [reclaim("b", "top")]


def test_a_job_just_brought_in_is_not_the_next_victim() -> None:
    kv = CheckedKvManager("reactive", device=4)
    kv.bring("a", 2, 3)
    kv.settle(kv.arrive("b", 2, 2))
    kv.plan(("a", 2, 3))
    # b ranks lowest, but has not run since it came.
    assert kv.arrive("top", 2, 2, key=-1.0) == [reclaim("a", "top")]


def test_a_job_just_brought_in_may_be_taken_once_plans_go_by_without_it() -> None:
    kv = CheckedKvManager("reactive", device=4)
    kv.bring("a", 2, 2)
    kv.settle(kv.arrive("b", 2, 2))
    kv.plan(("a", 0, 2))
    assert kv.arrive("top", 1, 1, key=-1.0) == [reclaim("a", "top")]
    kv.refuse("a")
    assert [kv.plan(("a", 0, 2)) for _ in range(3)] == [[], [], [reclaim("b", "top")]]


def test_a_job_just_brought_in_may_be_taken_when_nothing_runs() -> None:
    kv = CheckedKvManager("reactive", device=4)
    kv.settle(kv.arrive("a", 2, 2))
    kv.settle(kv.arrive("b", 2, 2))
    assert kv.arrive("top", 1, 1, key=-1.0) == [reclaim("b", "top")]


def test_a_running_job_that_can_not_grow_keeps_its_kv_and_sits_out() -> None:
    kv = CheckedKvManager("reactive", device=5)
    kv.bring("high", 2, 4)
    kv.bring("low", 2, 2)
    assert kv.free() == (0, 8)
    assert kv.settle(kv.run(("high", 2, 3))) == [reclaim("low", "high")]
    [offload] = kv.ack("low")
    assert kv.state("high") is KvState.DEVICE
    assert kv.settle([offload]) == [grown("high", 4)]


# --- proactive -------------------------------------------------------------------------------------------------------


def test_the_reserve_is_the_larger_of_k_and_the_jobs_in_the_top_levels() -> None:
    policy = kv_policy_named("proactive", idle_slots=3, largest_share=1.0)
    assert policy.reserve_blocks(ReserveFacts(100, 2.0, jobs_in_burst_levels=1)) == 6
    assert policy.reserve_blocks(ReserveFacts(100, 2.0, jobs_in_burst_levels=7)) == 14
    assert policy.reserve_blocks(ReserveFacts(100, 2.5, jobs_in_burst_levels=3)) == 8


def test_the_reserve_never_takes_more_than_its_share_of_the_pool() -> None:
    policy = kv_policy_named("proactive", idle_slots=3, largest_share=0.25)
    assert policy.reserve_blocks(ReserveFacts(100, 2.0, jobs_in_burst_levels=5_000)) == 25


def test_proactive_offloads_ahead_until_k_arrivals_fit() -> None:
    kv = CheckedKvManager(knobs("proactive", idle_slots=1), device=6, max_batch=1, quanta_s=BURST_LEVELS)
    kv.bring("run", 2, 2, level=2)
    kv.bring("next", 2, 2, level=3)
    assert kv.free() == (2, 8)
    # One arrival's blocks are two, and they are free. The third job does not get them before it would run.
    assert kv.settle(kv.arrive("third", 2, 2, level=3)) == []
    assert kv.place("third", 2, -1.0) == [reclaim("next", None), resident("third", 2)]


def test_proactive_makes_as_much_room_as_jobs_are_in_the_top_levels() -> None:
    kv = CheckedKvManager(knobs("proactive"), device=8, max_batch=1, quanta_s=BURST_LEVELS)
    for name, level in (("a", 2), ("b", 2), ("c", 3)):
        kv.bring(name, 2, 2, level)
    assert kv.free() == (2, 8)
    # One job in the top levels: one arrival's blocks have to be free beside those that the new job itself got.
    assert kv.settle(kv.arrive("new", 2, 2, level=0)) == [reclaim("c", None), resident("new", 2)]
    assert kv.settle(kv.arrive("other", 2, 2, level=1)) == [reclaim("b", None)]


def test_the_largest_enst_is_offloaded_first_though_another_ranks_lower() -> None:
    kv = CheckedKvManager(knobs("proactive"), device=9, max_batch=1, quanta_s=BURST_LEVELS, starvation_limit_s=10.0)
    kv.bring("lowest", 2, 2, level=3)
    kv.now_s = 8.0
    kv.bring("a", 2, 2, level=2)
    kv.bring("c", 2, 2, level=2)
    kv.now_s = 9.5
    # One job on level 0: level 2 waits for its quanta 1 + 2 = 3 s, level 3 for 3 + 3 * 4 = 15 s. But the lowest job
    # is promoted in half a second. Of a and c, which tie, c ranks lower.
    assert kv.settle(kv.arrive("new", 2, 2, level=0)) == [reclaim("c", None), resident("new", 2)]


def test_the_reserve_does_not_cost_anybodys_kv() -> None:
    kv = CheckedKvManager(knobs("proactive", idle_slots=2), device=6, host=1, max_batch=1, quanta_s=BURST_LEVELS)
    kv.bring("run", 2, 2, level=2)
    kv.bring("next", 2, 2, level=2)
    assert kv.state("next") is KvState.DEVICE


def test_a_job_that_would_run_now_may_use_the_reserve() -> None:
    kv = CheckedKvManager(knobs("proactive", idle_slots=1), device=4, max_batch=2, quanta_s=BURST_LEVELS)
    kv.bring("a", 2, 2, level=2)
    assert kv.settle(kv.arrive("b", 2, 2, level=2)) == [resident("b", 2)]


def test_a_job_behind_the_window_may_not_use_the_reserve() -> None:
    kv = CheckedKvManager(knobs("proactive", idle_slots=1), device=5, max_batch=1, quanta_s=BURST_LEVELS)
    kv.bring("a", 2, 2, level=2)
    assert kv.arrive("b", 2, 2, level=2) == []


def test_proactive_uploads_the_job_that_runs_next_when_room_abounds() -> None:
    kv = CheckedKvManager(knobs("proactive"), device=13, max_batch=1)
    kv.bring("b", 2, 3, key=5.0)
    kv.bring("big", 8, 8, key=1.0)
    assert kv.arrive("c", 4, 4, key=0.0) == [reclaim("b", "c")]
    assert kv.settle(kv.ack("b")) == [resident("c", 4)]
    assert kv.state("b") is KvState.HOST
    kv.settle(kv.run(("c", 0, 4)))
    assert kv.state("b") is KvState.HOST
    # With big gone, b is next behind c, and far more is free than b and an arrival need.
    assert kv.settle(kv.release("big")) == [resident("b", 3, valid=2)]


def test_reactive_does_not_upload_before_the_job_would_run() -> None:
    kv = CheckedKvManager("reactive", device=12, max_batch=1)
    kv.bring("b", 2, 3, key=5.0)
    kv.bring("big", 8, 8, key=1.0)
    kv.arrive("c", 4, 4, key=0.0)
    kv.swap_out("b")
    assert kv.settle(kv.release("big")) == []
    assert kv.settle(kv.release("c")) == [resident("b", 3, valid=2)]


def test_a_job_that_would_be_the_next_victim_is_not_uploaded_ahead() -> None:
    kv = CheckedKvManager(knobs("proactive"), device=12, max_batch=1)
    kv.bring("b", 4, 4, key=5.0)
    kv.bring("a", 8, 8, key=1.0)
    kv.settle(kv.arrive("c", 4, 4, key=0.0))
    kv.swap_out("b")
    kv.settle(kv.run(("c", 0, 4)))
    assert kv.state("b") is KvState.HOST
    # c is gone: four blocks are free, b needs them all, and would be the first to lose them to an arrival.
    assert kv.settle(kv.release("c")) == []
    assert kv.state("b") is KvState.HOST


# --- all -------------------------------------------------------------------------------------------------------------


def test_growth_is_granted_in_larger_pieces_while_the_pool_is_slack() -> None:
    kv = CheckedKvManager(knobs("reactive", grant=4), device=20, max_batch=2)
    kv.bring("a", 2, 16)
    assert kv.state("a") is KvState.DEVICE
    assert kv.settle(kv.run(("a", 2, 3))) == []
    assert kv.free() == (20 - 6, 8)


def test_growth_is_granted_in_single_blocks_while_the_pool_is_tight() -> None:
    kv = CheckedKvManager(knobs("reactive", grant=4), device=4, max_batch=2)
    kv.bring("a", 2, 16)
    assert kv.free() == (1, 8)


def decode_together(kv: CheckedKvManager, tokens: dict[str, int], steps: int) -> list[list[KvToScheduler]]:
    """All these jobs, of so many tokens, make so many more; what the scheduler heard, turn by turn, as far as it heard
    anything.
    """
    heard: list[list[KvToScheduler]] = []
    for _ in range(steps):
        if told := kv.settle(kv.plan(*((name, count, count + 1) for name, count in tokens.items()))):
            heard.append(told)
        kv.settle(kv.finish())
        tokens.update({name: count + 1 for name, count in tokens.items()})
    return heard


def test_jobs_grow_together_a_block_early_while_the_pool_has_plenty() -> None:
    kv = CheckedKvManager(knobs("reactive", lookahead=4, grant=4), device=100, block_size=16, max_batch=3)
    tokens = {"a": 3, "b": 11, "c": 25}
    for name, count in tokens.items():
        kv.bring(name, count, 200)
    # At first each has the blocks of its prompt and one more.
    assert decode_together(kv, tokens, 4) == []
    assert decode_together(kv, tokens, 1) == [[grown("a", 96), grown("b", 96), grown("c", 112)]]
    assert tokens["b"] == 32 - 16, "b has 16 left, the others have no more than 48"
    assert decode_together(kv, tokens, 63) == []
    assert decode_together(kv, tokens, 1) == [[grown("a", 160), grown("b", 160), grown("c", 176)]]


def test_jobs_grow_one_by_one_and_late_where_it_has_none() -> None:
    kv = CheckedKvManager(knobs("reactive", lookahead=4, grant=4), device=8, block_size=16, max_batch=3)
    tokens = {"a": 3, "b": 11}
    kv.bring("c", 60, 61)
    for name, count in tokens.items():
        kv.bring(name, count, 40)
    assert kv.free() == (2, 8)
    assert decode_together(kv, tokens, 1) == [[grown("b", 32)]]
    assert tokens["b"] == 12, "four tokens before its block is full"
    assert decode_together(kv, tokens, 7) == []
    assert decode_together(kv, tokens, 1) == [[grown("a", 32)]]


def test_a_grant_of_one_block_gives_none_ahead() -> None:
    kv = CheckedKvManager(knobs("reactive", lookahead=4), device=100, block_size=16, max_batch=3)
    tokens = {"a": 3}
    kv.bring("a", 3, 200)
    assert decode_together(kv, tokens, 24) == [], "it has its prompt's block, and one for the lookahead"
    assert decode_together(kv, tokens, 1) == [[grown("a", 48)]]


def test_a_job_never_gets_more_blocks_than_its_kv_may_come_to_need() -> None:
    kv = CheckedKvManager(knobs("reactive", lookahead=4, grant=4), device=20, max_batch=2)
    kv.bring("a", 2, 3)
    kv.settle(kv.run(("a", 2, 3)))
    assert kv.free() == (17, 8)


# --- jobs run to completion (FCFS) -----------------------------------------------------------------------------------


def to_completion(policy: str, device: int = 4) -> CheckedKvManager:
    return CheckedKvManager(policy, device=device, displaces=False)


@pytest.mark.parametrize("policy", ["recompute", "reactive", "proactive"])
def test_under_fcfs_a_waiting_job_takes_nothing_even_from_a_job_below_it(policy: str) -> None:
    kv = to_completion(policy)
    kv.bring("late", 3, 3)
    assert kv.arrive("early", 3, 3, key=-1.0) == []
    assert kv.state("late") is KvState.DEVICE
    assert kv.settle(kv.release("late")) == [resident("early", 3)]


@pytest.mark.parametrize("policy", ["recompute", "reactive", "proactive"])
def test_under_fcfs_growth_takes_the_job_that_was_admitted_last(policy: str) -> None:
    kv = to_completion(policy, device=5)
    kv.bring("first", 2, 5)
    kv.bring("second", 1, 1)
    kv.bring("third", 1, 1)
    assert kv.free()[0] == 0
    assert kv.run(("first", 2, 3)) == [reclaim("third", "first")]


def test_under_fcfs_a_job_whose_blocks_were_taken_waits_until_there_is_room_and_takes_none_back() -> None:
    kv = to_completion("recompute", device=5)
    kv.bring("first", 2, 5)
    kv.bring("second", 2, 2)
    assert kv.run(("first", 2, 3)) == [reclaim("second", "first")]
    assert grown("first", 4) in kv.settle(kv.ack("second"))
    assert kv.state("second") is KvState.WAITING
    assert kv.arrive("third", 1, 1) == [], "nobody is admitted before it"
    assert kv.settle(kv.release("first")) == [resident("second", 3), resident("third", 1)]


def test_under_fcfs_growth_comes_before_the_admission_of_a_job_above_it() -> None:
    """The older job waits for three blocks; one comes free, and the younger one, which runs, needs it."""
    kv = to_completion("recompute", device=5)
    kv.bring("other", 1, 1)
    kv.bring("younger", 3, 5)
    assert kv.arrive("older", 3, 3, key=-1.0) == []
    kv.run(("younger", 3, 4))
    assert kv.settle(kv.release("other")) == [grown("younger", 5)]
    assert kv.settle(kv.release("younger")) == [resident("older", 3)]


@pytest.mark.parametrize(("displaces", "heard"), [(True, []), (False, [resident("second", 2)])])
def test_under_fcfs_no_room_is_kept_for_arrivals(displaces: bool, heard: list[object]) -> None:
    kv = CheckedKvManager(knobs("proactive", idle_slots=4), device=6, max_batch=1, displaces=displaces)
    kv.bring("first", 2, 2)
    assert kv.settle(kv.arrive("second", 2, 2)) == heard
