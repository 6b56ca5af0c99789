"""A service without a purpose, run by the tests of its process: `python -m tests.runtime.example_service`."""

import asyncio
import sys
import threading

from pydantic import Field

from services.domain.errors import ModelFolderError
from services.runtime.process import ServiceProcess, service_main
from services.runtime.server import RpcServer
from services.runtime.settings import Address, Settings


class ExampleSettings(Settings):
    """What the example can be told."""

    listen: Address = "127.0.0.1:0"
    ending: str = Field("drains", description="drains, hangs, loads, refuses or breaks")


async def serve(process: ServiceProcess[ExampleSettings]) -> None:
    if process.settings.ending == "refuses":
        raise ModelFolderError("the folder is missing")
    if process.settings.ending == "breaks":
        raise KeyError("a bug")
    if process.settings.ending == "loads":
        print("loading", file=sys.stderr, flush=True)
        threading.Event().wait()
    server = RpcServer(process.settings.listen, [], lambda server: None)
    await server.start()
    await server.set_ready(True)
    process.announce_ready(server.address, "127.0.0.1:9")
    await process.until_stopped()
    if process.settings.ending == "hangs":
        await asyncio.Event().wait()
    await server.stop(grace_s=1.0)


if __name__ == "__main__":
    raise SystemExit(service_main("example", ExampleSettings, sys.argv[1:], serve))
