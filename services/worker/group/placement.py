"""Which rank of which group a process is, and where its leader is: from flags, or from the variables that torchrun and
LeaderWorkerSet set. No torch here.

torchrun names every process: RANK of WORLD_SIZE, LOCAL_RANK on its machine, MASTER_ADDR:MASTER_PORT. Unless told
otherwise it serves a store of its own at that port, in which the leader then writes where it listens.

LeaderWorkerSet names every pod: LWS_WORKER_INDEX of LWS_GROUP_SIZE, and the leader's pod LWS_LEADER_ADDRESS. A pod has
equally many ranks, of which LOCAL_RANK says the number if there are several.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from services.domain.errors import InvalidFieldError
from services.runtime.settings import Address, join_address
from services.worker.parallel.layout import GroupRank, Layout

LEADER_PORT = 29600
"""Where a leader listens in a LeaderWorkerSet, unless --leader says otherwise."""
_POD_HOST = "127.0.0.1"
"""Of a leader whose group is in one pod."""


@dataclass(frozen=True, slots=True)
class RankPlacement:
    """`leader` is where the leader listens, or None when that is written in torchrun's store at `store`.
    `local_rank` numbers the ranks of a machine, and so its GPUs.
    """

    rank: GroupRank
    local_rank: int = 0
    leader: Address | None = None
    store: Address | None = None


def placement_of(
    layout: Layout, rank: int | None, leader: Address | None, group: int, environ: Mapping[str, str]
) -> RankPlacement:
    """The placement of this process. `rank` and `leader` are flags, None where not given. Without LOCAL_RANK the ranks
    of all groups are taken to follow one another on one machine.

    Raises InvalidFieldError naming the flag or variable that is missing or does not fit.
    """
    world_size = _number(environ, "WORLD_SIZE")
    if world_size is not None and world_size != layout.rank_count:
        raise InvalidFieldError("WORLD_SIZE", f"is {world_size}, but {layout} makes {layout.rank_count} ranks")
    if layout.rank_count == 1:
        return RankPlacement(GroupRank(rank or 0, layout), group)
    local_rank = _number(environ, "LOCAL_RANK")
    number = _first(rank, _number(environ, "RANK"), _rank_in_set(layout, local_rank, environ))
    if number is None:
        raise InvalidFieldError(
            "--rank", f"is required with {layout}, unless RANK (torchrun) or LWS_WORKER_INDEX (LeaderWorkerSet) is set"
        )
    if local_rank is None:
        local_rank = group * layout.rank_count + number
    address, store = _leader(layout, leader, environ)
    return RankPlacement(GroupRank(number, layout), local_rank, address, store)


def first_of_pod(layout: Layout, environ: Mapping[str, str]) -> tuple[int, Address]:
    """Of a group whose pods are its stages: the number of this pod's first rank, and where the leader listens.

    Raises InvalidFieldError if the group has other than `pp` pods.
    """
    pods, pod = _number(environ, "LWS_GROUP_SIZE"), _number(environ, "LWS_WORKER_INDEX")
    host = environ.get("LWS_LEADER_ADDRESS")
    if pods is None or pod is None or not host:
        if layout.pp > 1:
            raise InvalidFieldError(
                "--pp", f"is {layout.pp}, but this pod is alone: stages are pods of a LeaderWorkerSet"
            )
        return 0, join_address(_POD_HOST, LEADER_PORT)
    if pods != layout.pp:
        raise InvalidFieldError("LWS_GROUP_SIZE", f"is {pods}, but --pp is {layout.pp}: a pod is a stage")
    return pod * layout.tp, join_address(host, LEADER_PORT)


def _leader(
    layout: Layout, leader: Address | None, environ: Mapping[str, str]
) -> tuple[Address | None, Address | None]:
    """Where the leader listens, or where torchrun's store is."""
    if leader is not None:
        return leader, None
    host, port = environ.get("MASTER_ADDR"), _number(environ, "MASTER_PORT")
    if host and port is not None:
        address = join_address(host, port)
        return (None, address) if environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True" else (address, None)
    if environ.get("LWS_LEADER_ADDRESS"):
        return join_address(environ["LWS_LEADER_ADDRESS"], LEADER_PORT), None
    raise InvalidFieldError(
        "--leader",
        f"is required with {layout}, unless MASTER_ADDR and MASTER_PORT (torchrun) or LWS_LEADER_ADDRESS "
        "(LeaderWorkerSet) are set",
    )


def _first(*numbers: int | None) -> int | None:
    return next((number for number in numbers if number is not None), None)


def _rank_in_set(layout: Layout, local_rank: int | None, environ: Mapping[str, str]) -> int | None:
    pod, pods = _number(environ, "LWS_WORKER_INDEX"), _number(environ, "LWS_GROUP_SIZE")
    if pod is None or pods is None:
        return None
    if pods < 1 or layout.rank_count % pods:
        raise InvalidFieldError(
            "LWS_GROUP_SIZE", f"is {pods}, among which the {layout.rank_count} ranks of {layout} can't be shared out"
        )
    ranks_per_pod = layout.rank_count // pods
    if ranks_per_pod > 1 and local_rank is None:
        raise InvalidFieldError("LOCAL_RANK", f"is required: each of {pods} pods has {ranks_per_pod} ranks")
    return pod * ranks_per_pod + (local_rank or 0)


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name)
    if not text:
        return None
    if not text.isdecimal():
        raise InvalidFieldError(name, f"must be a whole number, got {text!r}")
    return int(text)
