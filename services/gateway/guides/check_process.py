"""The process that checks guides for a gateway: a guide that takes too long, too much memory or the process itself does
so here.

Reads guides from its standard input, a JSON object a line, and answers each with a line: {} if it can be used, else
what is wrong with it. Its first line says that it is ready, or why no guide can be used. It ends with its input.
"""

import json
import resource
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from services.domain.errors import ModelFolderError
from services.gateway.guides.check_lines import guide_of
from services.gateway.guides.guide_check import fault_of
from services.runtime.guide_compiler import GuideCompiler

MOST_MEMORY_BYTES = 1 << 30
"""Of addresses: three times what it has with a vocabulary of 128,000 (of which 110 MB are in memory)."""
MOST_STEP_CHARACTERS = 64
MOST_REASON_CHARACTERS = 500
STACK_BYTES = 4 << 20
"""Half of what a thread of the worker has, which compiles the same guides."""


def answer(compiler: GuideCompiler, line: str) -> dict[str, Any]:
    """The answer to a line."""
    fault = fault_of(compiler, guide_of(line))
    if fault is None:
        return {}
    path = [step[:MOST_STEP_CHARACTERS] if isinstance(step, str) else step for step in fault.path]
    return {"path": path, "reason": fault.reason[:MOST_REASON_CHARACTERS]}


def _serve(model: Path, lines: TextIO, say: Callable[[dict[str, Any]], None]) -> None:
    try:
        compiler = GuideCompiler(model)
    except ModelFolderError as error:
        say({"unusable": str(error)})
        return
    say({"ready": True})
    for line in lines:
        say(answer(compiler, line))


def _say(said: dict[str, Any]) -> None:
    print(json.dumps(said), flush=True)


def main() -> int:
    """Serves until the input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the gateway ends it
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY_BYTES, MOST_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    threading.stack_size(STACK_BYTES)
    serving = threading.Thread(target=_serve, args=(Path(sys.argv[1]), sys.stdin, _say))
    serving.start()
    serving.join()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
