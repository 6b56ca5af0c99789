"""`fastserve up` with fake services, each after the one before it: `python up_of_fake_services.py STATE_DIR
NAME:BEHAVIOUR ...`.
"""

import asyncio
import sys
from collections.abc import Mapping
from pathlib import Path

from services.cli.up.service_process import ServiceAddresses, ServiceCommand
from services.cli.up.supervisor import supervise
from services.runtime.command_line import CommandError

FAKE_SERVICE = Path(__file__).with_name("fake_service.py")
STOP_LIMIT_S = 1.0


def command_of(name: str, behaviour: str, after: tuple[str, ...]) -> ServiceCommand:
    def build(known: Mapping[str, ServiceAddresses]) -> list[str]:
        assert all(peer in known for peer in after)
        listen = ["--listen", known[name].grpc] if name in known else []
        return [sys.executable, str(FAKE_SERVICE), name, behaviour, *listen]

    return ServiceCommand(name, build, after, stop_limit_s=STOP_LIMIT_S)


def main(state_dir: str, *services: str) -> int:
    names = [service.partition(":")[0] for service in services]
    commands = [
        command_of(name, service.partition(":")[2], tuple(names[:number][-1:]))
        for number, (name, service) in enumerate(zip(names, services, strict=True))
    ]

    async def serves(addresses: Mapping[str, ServiceAddresses]) -> None:
        assert set(addresses) == set(names)
        if any("late-fail" in service for service in services):
            await asyncio.Event().wait()

    def announce(addresses: Mapping[str, ServiceAddresses]) -> None:
        print(f"ready {' '.join(sorted(addresses))}", flush=True)

    try:
        asyncio.run(supervise(commands, Path(state_dir), serves, announce))
    except CommandError as error:
        print(f"fastserve up: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
