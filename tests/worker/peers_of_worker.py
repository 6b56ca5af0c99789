"""A scheduler and a KV manager for a worker, on free ports."""

import grpc

from fastserve.v1 import kvmanager_pb2_grpc, scheduler_pb2_grpc
from services.runtime.server import RpcServer
from tests.worker.fake_kv_manager_for_worker import FakeKvManagerForWorker
from tests.worker.fake_scheduler_for_worker import FakeSchedulerForWorker


class PeersOfWorker:
    """Both, on free ports."""

    def __init__(self) -> None:
        self.scheduler = FakeSchedulerForWorker()
        self.kv_manager = FakeKvManagerForWorker()
        self._servers = (
            RpcServer("127.0.0.1:0", (), self._add_scheduler),
            RpcServer("127.0.0.1:0", (), self._add_kv_manager),
        )

    def _add_scheduler(self, server: grpc.aio.Server) -> None:
        scheduler_pb2_grpc.add_SchedulerServiceServicer_to_server(self.scheduler, server)

    def _add_kv_manager(self, server: grpc.aio.Server) -> None:
        kvmanager_pb2_grpc.add_KvManagerServiceServicer_to_server(self.kv_manager, server)

    @property
    def scheduler_address(self) -> str:
        return self._servers[0].address

    @property
    def kv_manager_address(self) -> str:
        return self._servers[1].address

    async def __aenter__(self) -> "PeersOfWorker":
        for server in self._servers:
            await server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for server in self._servers:
            await server.stop(0)
