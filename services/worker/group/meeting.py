"""How the ranks of a group meet for an epoch: the leader serves a store, each rank connects to it and makes the epoch's
process groups with the others.

Only for ranks of a group of several: it needs torch.distributed.
"""

import os
import socket
from collections.abc import Callable
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from services.domain.errors import UnreachableError
from services.domain.protocol import Done
from services.runtime.model_files import fingerprint
from services.runtime.profile_file import Profile
from services.runtime.settings import Address, bare_host, join_address, split_address
from services.worker.build import Loaded, default_dtype
from services.worker.engine.engine import Engine
from services.worker.group.messages import Begin, RankFacts, RankIdentity
from services.worker.model.config_json import read_model_config
from services.worker.parallel.layout import GroupRank
from services.worker.parallel.process_groups import rendezvous
from services.worker.profiling.group_measurement import follow_measurements, measure_group
from services.worker.settings import EngineSettings

MEET_LIMIT_S = 20.0
"""The longest wait for the others when an epoch begins: they finish a step or a wait before."""
_LEADER_KEY = "fastserve/leader"


class GroupStore:
    """The store that this leader serves, as long as this object lives."""

    def __init__(self, host: str) -> None:
        with socket.create_server((bare_host(host), 0)) as listening:
            self.port: int = listening.getsockname()[1]
            descriptor = listening.detach()
        limit = timedelta(seconds=MEET_LIMIT_S)
        self._store = TCPStore(
            bare_host(host), self.port, None, True, limit, wait_for_workers=False, master_listen_fd=descriptor
        )


def stay_on_loopback(host: str) -> None:
    """Ranks of one machine meet on its loopback interface, whatever the machine's name stands for. Called before
    torch.distributed is used.
    """
    if _is_loopback(bare_host(host)):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def write_leader(store: Address, leader: Address) -> None:
    """Tells torchrun's store where the leader listens."""
    _store_of(store).set(_LEADER_KEY, leader)


def read_leader(store: Address) -> Address:
    """Where the leader listens, from torchrun's store. Raises UnreachableError if it does not say so in time."""
    try:
        return str(_store_of(store).get(_LEADER_KEY).decode())
    except RuntimeError as error:
        raise UnreachableError(f"torchrun's store at {store} does not name the leader: {error}") from None


def _store_of(address: Address) -> TCPStore:
    host, port = split_address(address)
    return TCPStore(bare_host(host), port, None, False, timedelta(seconds=MEET_LIMIT_S))


def rank_identity(rank: GroupRank, settings: EngineSettings) -> RankIdentity:
    """What a rank says of itself before it loads its share. Raises ModelFolderError."""
    dtype = settings.dtype or default_dtype(read_model_config(settings.model).dtype, torch.device(settings.device))
    return RankIdentity(
        rank=rank.number,
        tp=rank.layout.tp,
        pp=rank.layout.pp,
        model_fingerprint=fingerprint(settings.model),
        dtype=dtype,
        block_size=settings.block_size,
        model=settings.model.resolve().name,
    )


def rank_facts(rank: GroupRank, loaded: Loaded) -> RankFacts:
    """What a rank reports to its leader."""
    source, pools = loaded.source, loaded.pools
    return RankFacts(
        rank=rank.number,
        tp=rank.layout.tp,
        pp=rank.layout.pp,
        model_fingerprint=str(source["model_fingerprint"]),
        dtype=str(source["dtype"]),
        block_size=pools.shape.block_size,
        max_model_len=loaded.model.max_model_len,
        first_layers=loaded.first_layers,
        device_blocks=pools.device_block_count,
        host_blocks=pools.host_block_count,
        block_bytes=pools.shape.block_bytes,
        model=str(source["model"]),
        kernels=str(source["kernels"]),
        weights=str(source["weights"]),
    )


class Meeting:
    """A rank's `MeetsRanks` (rank_worker.py). `leader_host` is where the store is; the leader itself serves
    `own_store`.
    """

    def __init__(
        self,
        rank: GroupRank,
        loaded: Loaded,
        engine: Engine,
        leader_host: Callable[[], str],
        profile_folder: Path | None = None,
        own_store: GroupStore | None = None,
    ) -> None:
        self._own_store = own_store
        self._rank = rank
        self._loaded = loaded
        self._engine = engine
        self._leader_host = leader_host
        self._profile_folder = profile_folder
        self.profile: Profile | None = None
        """What the leader has measured or read."""

    def __call__(self, begin: Begin, on_done: Callable[[Done], None]) -> None:
        loaded = self._loaded
        store = _store_of(join_address(self._leader_host(), begin.store_port))
        links = rendezvous(store, self._rank, begin.epoch, loaded.device, MEET_LIMIT_S, begin.wait_limit_s)
        stage_pass = self._engine.stage_pass
        if not begin.measures:
            self._engine.begin_epoch(begin.epoch, on_done, links)
        elif self._rank.leads:
            self.profile = measure_group(
                stage_pass, loaded.pools, loaded.limits, loaded.source, links, self._profile_folder
            )
        else:
            follow_measurements(stage_pass, loaded.pools, links)
