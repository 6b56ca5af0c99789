"""Which rank a process is, and where its leader listens: flags first, then torchrun's variables, then those of a
LeaderWorkerSet.
"""

import pytest

from services.domain.errors import InvalidFieldError
from services.worker.group.placement import LEADER_PORT, RankPlacement, first_of_pod, placement_of
from services.worker.parallel.layout import GroupRank, Layout

FOUR = Layout(tp=2, pp=2)
TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "MASTER_ADDR": "node0", "MASTER_PORT": "29500"}
POD = {"LWS_LEADER_ADDRESS": "set-0.set.default", "LWS_WORKER_INDEX": "1", "LWS_GROUP_SIZE": "2"}


def placed(
    environ: dict[str, str],
    layout: Layout = FOUR,
    rank: int | None = None,
    leader: str | None = None,
    group: int = 0,
) -> RankPlacement:
    return placement_of(layout, rank, leader, group, environ)


def test_a_worker_of_one_rank_needs_nothing() -> None:
    assert placed({}, Layout()) == RankPlacement(GroupRank(0, Layout()))


def test_flags_name_the_rank_and_its_leader_also_beside_variables() -> None:
    by_flags = placed({**TORCHRUN, **POD}, rank=2, leader="127.0.0.1:5")
    assert by_flags == RankPlacement(GroupRank(2, FOUR), local_rank=1, leader="127.0.0.1:5")


def test_without_a_local_rank_the_ranks_of_all_groups_follow_one_another() -> None:
    assert placed({}, rank=3, leader="127.0.0.1:5", group=1).local_rank == 7


def test_torchrun_names_them_by_variables() -> None:
    assert placed(TORCHRUN) == RankPlacement(GroupRank(3, FOUR), local_rank=1, leader="node0:29500")


def test_a_store_that_torchrun_serves_itself_is_where_the_leader_is_written() -> None:
    in_store = placed({**TORCHRUN, "TORCHELASTIC_USE_AGENT_STORE": "True"})
    assert (in_store.leader, in_store.store) == (None, "node0:29500")


def test_a_leader_worker_set_names_pods_each_of_which_has_equally_many_ranks() -> None:
    of_pod = placed({**POD, "LOCAL_RANK": "1"})
    assert of_pod == RankPlacement(GroupRank(3, FOUR), 1, f"set-0.set.default:{LEADER_PORT}")
    alone_in_its_pod = placed(POD, Layout(tp=1, pp=2))
    assert alone_in_its_pod.rank == GroupRank(1, Layout(tp=1, pp=2))


@pytest.mark.parametrize(
    ("environ", "rank", "leader", "reason"),
    [
        ({}, None, "127.0.0.1:5", r"--rank: is required with --tp 2 --pp 2"),
        ({}, 1, None, "--leader: is required"),
        ({}, 4, "127.0.0.1:5", "--rank: must be from 0 to 3"),
        ({**TORCHRUN, "WORLD_SIZE": "8"}, None, None, "WORLD_SIZE: is 8, but --tp 2 --pp 2 makes 4 ranks"),
        ({**TORCHRUN, "RANK": "x"}, None, None, "RANK: must be a whole number, got 'x'"),
        ({**POD, "LWS_GROUP_SIZE": "3"}, None, None, "LWS_GROUP_SIZE: is 3"),
        (POD, None, None, "LOCAL_RANK: is required: each of 2 pods has 2 ranks"),
    ],
)
def test_what_is_missing_or_does_not_fit_is_named(
    environ: dict[str, str], rank: int | None, leader: str | None, reason: str
) -> None:
    with pytest.raises(InvalidFieldError, match=reason):
        placed(environ, rank=rank, leader=leader)


def test_a_world_of_several_is_no_worker_of_one_rank() -> None:
    with pytest.raises(InvalidFieldError, match="WORLD_SIZE: is 4, but --tp 1 --pp 1 makes 1 ranks"):
        placed(TORCHRUN, Layout())


@pytest.mark.parametrize(
    ("layout", "environ", "first", "leader"),
    [
        (Layout(tp=4), {}, 0, f"127.0.0.1:{LEADER_PORT}"),
        (FOUR, POD, 2, f"set-0.set.default:{LEADER_PORT}"),
        (FOUR, {**POD, "LWS_WORKER_INDEX": "0"}, 0, f"set-0.set.default:{LEADER_PORT}"),
    ],
)
def test_a_pod_is_a_stage(layout: Layout, environ: dict[str, str], first: int, leader: str) -> None:
    assert first_of_pod(layout, environ) == (first, leader)


@pytest.mark.parametrize(
    ("layout", "environ", "reason"),
    [
        (Layout(), POD, "LWS_GROUP_SIZE: is 2, but --pp is 1: a pod is a stage"),
        (Layout(tp=1, pp=4), POD, "LWS_GROUP_SIZE: is 2, but --pp is 4: a pod is a stage"),
        (FOUR, {}, "--pp: is 2, but this pod is alone: stages are pods of a LeaderWorkerSet"),
    ],
)
def test_a_group_whose_pods_are_not_its_stages_is_refused(layout: Layout, environ: dict[str, str], reason: str) -> None:
    with pytest.raises(InvalidFieldError, match=reason):
        first_of_pod(layout, environ)
