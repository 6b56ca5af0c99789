"""PROTOCOL rules 7 to 16; each test is named after what goes wrong without the rule."""

from services.domain.ids import BlockId, CommandNumber, JobId
from services.domain.protocol import Assign, Offload, ReleaseBlocks, Upload
from services.kvmanager.machine.kv_job import KvState
from tests.builders.block_moves import block_moves
from tests.kvmanager.machine.checked_kv_manager import CheckedKvManager, Message, grown, knobs, reclaim, resident


def blocks(*numbers: int) -> tuple[BlockId, ...]:
    return tuple(BlockId(number) for number in numbers)


def command(number: int) -> CommandNumber:
    return CommandNumber(number)


def offloading(*, device: int = 4, host: int = 8) -> tuple[CheckedKvManager, Offload]:
    """Job b, of two blocks and one to grow into, is being offloaded for job a, which wants four."""
    kv = CheckedKvManager("reactive", device=device, host=host)
    kv.bring("b", 2, 3)
    kv.arrive("a", 4, 4, key=-1.0)
    [offload] = kv.ack("b")
    assert isinstance(offload, Offload)
    return kv, offload


def only(messages: list[Message]) -> Message:
    [message] = messages
    return message


# --- 7: the KV manager alone issues block ids, and its commands wait for nothing -------------------------------------


def test_7_plan_waits_for_a_command_no_command_depends_on_a_plan() -> None:
    kv = CheckedKvManager("reactive", device=4)
    kv.bring("a", 2, 3)
    kv.plan(("a", 2, 3))
    # While a plan of a is under way, b gets its blocks at once.
    assert kv.arrive("b", 1, 1) == [Assign(command(3), JobId("b"), blocks(3))]


# --- 8: announce only what the worker knows; match by number ---------------------------------------------------------


def test_8_confirm_nothing_is_announced_before_the_worker_applied_it() -> None:
    kv = CheckedKvManager("reactive")
    assert kv.arrive("a", 2, 2) == [Assign(command(1), JobId("a"), blocks(0, 1))]
    assert kv.applied(1) == [resident("a", 2)]


def test_8_an_upload_is_not_announced_before_the_worker_has_the_kv() -> None:
    kv, offload = offloading()
    kv.settle([offload])
    upload = kv.release("a")[-1]
    assert isinstance(upload, Upload)
    assert kv.applied(upload.command_number) == []
    assert kv.done(upload.command_number) == [resident("b", 3, valid=2)]


def test_8_acks_numbered_applied_of_an_old_growth_is_not_taken_for_the_uploads() -> None:
    kv = CheckedKvManager("reactive", device=5)
    kv.bring("high", 2, 2)
    kv.settle(kv.arrive("low", 2, 4))
    growth = only(kv.run(("low", 0, 2)))
    assert isinstance(growth, Assign)
    # Before its growth is applied, low is offloaded, and uploaded again.
    kv.place("high", 0, -5.0)
    assert kv.arrive("top", 2, 2, key=-9.0) == [reclaim("low", "top")]
    offload = kv.ack("low")[0]
    assert isinstance(offload, Offload)
    kv.settle([offload])
    upload = kv.release("top")[-1]
    assert isinstance(upload, Upload)
    assert kv.applied(growth.command_number) == []
    assert kv.state("low") is KvState.UPLOADING
    assert kv.applied(upload.command_number) == []
    assert kv.done(upload.command_number) == [resident("low", 3, valid=2)]


# --- 9: blocks in a copy are free when it is Done --------------------------------------------------------------------


def test_9_offload_waits_done_blocks_are_not_given_away_under_the_copy() -> None:
    kv, offload = offloading()
    assert offload.moves == block_moves((0, 0), (1, 1))
    assert kv.free() == (2, 6)
    assert kv.applied(offload.command_number) == []
    assert kv.done(offload.command_number) == [Assign(command(4), JobId("a"), blocks(0, 1, 2, 3))]


def test_9_the_host_blocks_of_an_upload_are_kept_until_it_is_done() -> None:
    kv, offload = offloading()
    kv.settle([offload])
    upload = kv.release("a")[-1]
    assert isinstance(upload, Upload)
    kv.applied(upload.command_number)
    assert kv.free() == (1, 6)
    kv.done(upload.command_number)
    assert kv.state("b") is KvState.DEVICE
    assert kv.free() == (1, 8)


def test_9_release_keeps_copies_cancel_during_offload() -> None:
    kv, offload = offloading()
    assert kv.release("b") == [ReleaseBlocks(command(4), JobId("b"))]
    assert kv.free() == (2, 6)
    assert kv.machine.status()["zombie"] == 1
    assert kv.done(offload.command_number) == [Assign(command(5), JobId("a"), blocks(0, 1, 2, 3))]
    assert kv.free() == (0, 8)


def test_9_cancel_during_upload_frees_at_once_only_what_no_copy_names() -> None:
    kv = CheckedKvManager("reactive", device=4)
    kv.bring("b", 2, 4)
    kv.arrive("a", 4, 4, key=-1.0)
    kv.swap_out("b")
    upload = kv.release("a")[-1]
    assert isinstance(upload, Upload)
    assert len(upload.device_blocks) == 3
    assert kv.release("b") == [ReleaseBlocks(command(upload.command_number + 1), JobId("b"))]
    assert kv.free() == (2, 6)
    kv.applied(upload.command_number)
    kv.done(upload.command_number)
    assert kv.free() == (4, 8)


# --- 10: one copy of a job at a time ---------------------------------------------------------------------------------


def test_10_one_copy_a_job_whose_upload_runs_is_not_asked_for() -> None:
    kv, offload = offloading()
    kv.settle([offload])
    upload = kv.release("a")[-1]
    assert isinstance(upload, Upload)
    kv.applied(upload.command_number)
    assert kv.arrive("top", 4, 4, key=-9.0) == []
    assert kv.done(upload.command_number) == [resident("b", 3, valid=2), reclaim("b", "top")]


# --- 11: only finished tokens are copied -----------------------------------------------------------------------------


def test_11_copy_finished_only_an_offload_names_the_blocks_of_finished_tokens() -> None:
    kv = CheckedKvManager(knobs("reactive", lookahead=4), device=8, block_size=2)
    kv.bring("b", 3, 12)
    assert kv.free() == (8 - 4, 8)
    kv.arrive("a", 16, 16, key=-1.0)
    [offload, *_] = kv.ack("b")
    assert isinstance(offload, Offload)
    # Of its four blocks two hold its three tokens; the others are free at once.
    assert (offload.valid_tokens, len(offload.moves)) == (3, 2)
    assert kv.free() == (6, 6)


# --- 12: by rank, all or nothing, no overtaking ----------------------------------------------------------------------


def test_12_hoarding_a_job_that_is_not_resident_gets_all_blocks_or_none() -> None:
    kv = CheckedKvManager("defer", device=4)
    kv.settle(kv.arrive("a", 2, 2))
    assert kv.arrive("b", 3, 3) == []
    assert kv.free() == (2, 8)


def test_12_overtaking_free_blocks_that_a_higher_job_waits_for_are_not_given_to_a_lower_one() -> None:
    kv = CheckedKvManager("reactive", device=4)
    kv.bring("b", 2, 2)
    kv.settle(kv.arrive("c", 2, 2))
    assert kv.arrive("a", 3, 3, key=-1.0) == [reclaim("c", "a"), reclaim("b", "a")]
    # c holds no KV: its two blocks are free at once. They are too few for a, and c does not get them again.
    assert kv.ack("c") == [ReleaseBlocks(command(3), JobId("c"))]
    assert kv.free() == (2, 8)
    [offload] = kv.ack("b")
    assert kv.settle([offload]) == [resident("a", 3)]
    assert kv.state("c") is KvState.WAITING


def test_12_a_demand_that_nothing_below_can_cover_holds_nobody_up() -> None:
    kv = CheckedKvManager("reactive", device=4)
    kv.bring("a", 3, 3)
    assert kv.arrive("b", 2, 2) == []
    assert kv.settle(kv.arrive("c", 1, 1)) == [resident("c", 1)]


# --- 13: only jobs below, lowest first -------------------------------------------------------------------------------


def test_13_crossing_reclaims_nobody_is_asked_for_a_job_that_ranks_below_it() -> None:
    kv = CheckedKvManager("reactive", device=6)
    kv.bring("a", 2, 4)
    kv.bring("b", 2, 4)
    assert kv.free() == (0, 8)
    kv.plan(("a", 2, 3), ("b", 2, 3))
    # Both would grow; only the higher one may ask for the other.
    assert kv.finish() == []
    assert (kv.state("a"), kv.state("b")) == (KvState.DEVICE, KvState.ASKED)


def test_13_the_top_job_may_use_the_idle_reserve() -> None:
    kv = CheckedKvManager(knobs("proactive", idle_slots=1), device=4, max_batch=1)
    kv.bring("a", 2, 3)
    assert kv.state("a") is KvState.DEVICE
    # Two blocks are reserved for one arrival; the top job grows into them.
    assert kv.settle(kv.run(("a", 2, 3))) == []
    assert kv.free() == (1, 8)


def test_13_plans_made_before_the_scheduler_heard_of_a_job_do_not_use_up_its_protection() -> None:
    kv = CheckedKvManager("reactive", device=2, block_size=32)
    kv.settle(kv.arrive("a", 1, 30))
    for place in range(8):
        kv.plan(("a", place, place + 1))
    assert kv.settle(kv.arrive("b", 1, 30)) == [resident("b", 32)]
    kv.arrive("c", 1, 30, key=1.5)
    heard = []
    for place in range(8, 16):
        heard.append([*kv.finish(place - 7), *kv.plan(("a", place, place + 1))])
    assert heard == [[]] * 7 + [[reclaim("b", "c")]]


# --- 14: after a refusal --------------------------------------------------------------------------------------------


def test_14_lost_grant_growth_applied_while_asked_is_announced_after_the_refusal() -> None:
    kv = CheckedKvManager("reactive", device=4)
    kv.settle(kv.arrive("a", 2, 3))
    growth = only(kv.run(("a", 0, 2)))
    assert isinstance(growth, Assign)
    assert kv.arrive("b", 2, 2, key=-1.0) == [reclaim("a", "b")]
    # Late grant: while it is asked for, nothing is announced.
    assert kv.applied(growth.command_number) == []
    kv.say(*kv.arrival("c", 1, 1, key=9.0))
    assert kv.refuse("a")[0] == grown("a", 3)


def test_14_after_a_refusal_it_decides_again_at_once() -> None:
    kv = CheckedKvManager("reactive", device=4)
    kv.bring("a", 2, 2)
    kv.bring("b", 2, 2)
    assert kv.arrive("c", 2, 2, key=-1.0) == [reclaim("b", "c")]
    kv.order("b")
    assert kv.refuse("b") == [reclaim("a", "c")]


def test_14_no_new_command_while_asked() -> None:
    kv = CheckedKvManager("reactive", device=4)
    kv.bring("a", 2, 4, key=5.0)
    kv.plan(("a", 2, 3))
    assert kv.arrive("b", 2, 2, key=-1.0) == [reclaim("a", "b")]
    # Its last block is filled, and it would grow.
    assert kv.finish() == []


# --- 15: at the Ack --------------------------------------------------------------------------------------------------


def test_15_a_full_host_drops_the_lowest_swapped_out_job_below_the_victim() -> None:
    kv = CheckedKvManager("reactive", device=4, host=2)
    kv.bring("c", 2, 2, key=9.0)
    kv.bring("b", 2, 2, key=5.0)
    assert kv.arrive("a", 2, 2, key=-1.0) == [reclaim("c", "a")]
    kv.swap_out("c")
    kv.settle(kv.run(("a", 0, 2)))
    assert kv.arrive("top", 2, 2, key=-2.0) == [reclaim("b", "top")]
    released, offload = kv.ack("b")
    assert isinstance(released, ReleaseBlocks)
    assert released.job_id == "c"
    assert isinstance(offload, Offload)
    assert (kv.state("b"), kv.state("c")) == (KvState.OFFLOADING, KvState.WAITING)


def test_15_a_full_host_of_higher_jobs_drops_the_victim() -> None:
    kv = CheckedKvManager("reactive", device=4, host=2)
    kv.bring("c", 2, 2, key=5.0)
    kv.bring("b", 2, 2, key=9.0)
    kv.place("c", 0, 10.0)
    kv.arrive("a", 2, 2, key=-1.0)
    kv.swap_out("c")
    kv.place("c", 0, 8.0)
    kv.settle(kv.run(("a", 0, 2)))
    assert kv.arrive("top", 2, 2, key=-2.0) == [reclaim("b", "top")]
    released = kv.ack("b")[0]
    assert isinstance(released, ReleaseBlocks)
    assert (kv.state("b"), kv.state("c")) == (KvState.WAITING, KvState.HOST)


def test_15_a_dropped_job_is_to_be_prefilled_again() -> None:
    kv = CheckedKvManager("reactive", device=4, host=0)
    kv.bring("b", 2, 4, key=5.0)
    kv.settle(kv.run(("b", 2, 3)))
    kv.arrive("a", 4, 4, key=-1.0)
    kv.swap_out("b")
    assert kv.state("b") is KvState.WAITING
    assert kv.settle(kv.release("a")) == [resident("b", 4, valid=0)]


# --- 16: growth ------------------------------------------------------------------------------------------------------


def test_16_a_block_is_appended_when_the_capacity_left_is_no_more_than_the_lookahead() -> None:
    kv = CheckedKvManager(knobs("reactive", lookahead=2), device=4, block_size=4, max_batch=4)
    kv.settle(kv.arrive("a", 1, 12))
    assert kv.plan(("a", 0, 1)) == []
    assert kv.plan(("a", 1, 2)) == [Assign(command(2), JobId("a"), blocks(1))]
    assert kv.applied(2) == [grown("a", 8)]


def test_16_plans_made_ahead_use_up_the_capacity_earlier_so_the_block_comes_earlier() -> None:
    kv = CheckedKvManager(knobs("reactive", lookahead=1), device=4, block_size=8, max_batch=4)
    kv.settle(kv.arrive("a", 1, 20))
    for place in range(4):
        assert kv.plan(("a", place, place + 1)) == []
    assert len(kv.plan(("a", 4, 5))) == 1, "5 plans name it: three more than two, and 3 tokens are left"


def test_16_one_growth_of_a_job_is_under_way_at_a_time() -> None:
    kv = CheckedKvManager("reactive", device=4)
    kv.settle(kv.arrive("a", 1, 4))
    assert len(kv.plan(("a", 0, 1))) == 1
    assert kv.finish() == []


# --- 28: ids that come again -----------------------------------------------------------------------------------------


def test_28_id_comes_again_what_is_said_of_a_job_repeats_the_number_of_its_stay() -> None:
    kv = CheckedKvManager("reactive", device=3)
    first, second = (kv.arrival("a", 1, 3, stay_number=number) for number in (5, 6))
    kv.say(*first)
    kv.release("a")
    assert kv.settle(kv.say(*second)) == [resident("a", 1, stay_number=6)]
    assert kv.settle(kv.plan(("a", 0, 1))) == [grown("a", 2, stay_number=6)]
    kv.finish()
    assert reclaim("a", "b", stay_number=6) in kv.arrive("b", 2, 2, key=-1.0)
