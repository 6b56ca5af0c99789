"""The engine without services, in a process of its own: what the services are measured against.

    python -m benchmarks.engine_process --model DIR --max-batch 16 ...

Takes the flags of the engine, as the worker does. A request is a line of JSON on stdin, its answer a line of JSON on
stdout; a first line says that the engine is ready. Between requests the process sleeps, so it can stay while the
services are measured.
"""

import argparse
import json
import os
import sys

from services.runtime.process import die_with_parent
from services.runtime.settings import load
from services.worker.engine.compute_environment import set_compute_environment
from services.worker.settings import KeptEngineSettings


def main(argv: list[str] | None = None) -> int:
    """Answers requests until stdin ends."""
    own = argparse.ArgumentParser(description="The engine without services.", add_help=False, allow_abbrev=False)
    own.add_argument("--parent", type=int, required=True)
    own.add_argument("--max-batch-tokens", type=int, required=True)
    arguments, flags = own.parse_known_args(argv)
    settings = load(KeptEngineSettings, "worker", flags, os.environ)
    die_with_parent(arguments.parent)
    # As in a worker, torch is imported only once its environment is set.
    set_compute_environment()
    from benchmarks.engine_under_test import EngineUnderTest

    engine = EngineUnderTest(settings, arguments.max_batch_tokens)
    print(json.dumps({"ready": True, "threads": engine.threads}), flush=True)
    for line in sys.stdin:
        print(json.dumps(engine.answer(json.loads(line))), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
