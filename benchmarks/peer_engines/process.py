"""A peer's engine in a process of its own, in an environment of its own.

    build/peers/NAME/bin/python -m benchmarks.peer_engines.process --peer NAME --model DIR --made DIR --parent PID ...

A request is a line of JSON on stdin, its answer a line of JSON on stdout; a first line says that the engine is ready.
What a peer's libraries print goes to stderr. Knows the standard library and the peer's alone.
"""

import argparse
import ctypes
import importlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, TextIO

from benchmarks.peer_engines.driving import Clock, PeerEngine, TimedJob, drive, trace_figures
from benchmarks.peer_engines.engine_settings import PeerSettings

MODULES = {
    "openvino": "benchmarks.peer_engines.openvino_engine",
    "vllm": "benchmarks.peer_engines.vllm_engine",
    "llama-cpp": "benchmarks.peer_engines.llama_server",
    "transformers": "benchmarks.peer_engines.transformers_engine",
}
_PR_SET_PDEATHSIG = 1


class DrivenPeer:
    """Serves the requests of a benchmark from a peer's engine."""

    def __init__(self, engine: PeerEngine) -> None:
        self._engine = engine
        self._next_number = 0

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """`jobs` is a list of [arrival in seconds, prompt, output tokens]. With `watched`, the answer has the tokens
        and their times; without, the figures of a trace run.
        """
        jobs = [TimedJob(arrival_s, tuple(prompt), tokens) for arrival_s, prompt, tokens in request["jobs"]]
        first, self._next_number = self._next_number, self._next_number + len(jobs)
        outputs = drive(self._engine, jobs, Clock(), first, request["watched"])
        if not request["watched"]:
            return dict(trace_figures(jobs, outputs))
        return {"token_ids": [one.token_ids for one in outputs], "times_s": [one.times_s for one in outputs]}


def die_with_parent(parent_id: int) -> None:
    """Ties this process's life to its parent's, on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_id:
        os._exit(1)


def own_stdout() -> TextIO:
    """The stream that answers go to; all else that is written to stdout, by libraries too, goes to stderr."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return answers


def _settings(argv: list[str] | None) -> tuple[str, int, PeerSettings]:
    parser = argparse.ArgumentParser(description="A peer's engine in a process of its own.", allow_abbrev=False)
    parser.add_argument("--peer", choices=tuple(MODULES), required=True)
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--made", type=Path, required=True, help="folder for what the peer makes of the model")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--kv-tokens", type=int, required=True)
    parser.add_argument("--max-batch", type=int, required=True)
    given = parser.parse_args(argv)
    made = PeerSettings(given.model, given.made, given.threads, given.kv_tokens, given.max_batch)
    return given.peer, given.parent, made


def main(argv: list[str] | None = None) -> int:
    """Answers requests until stdin ends."""
    peer, parent_id, settings = _settings(argv)
    die_with_parent(parent_id)
    answers = own_stdout()
    driven = DrivenPeer(importlib.import_module(MODULES[peer]).engine(settings))
    print(json.dumps({"ready": True, "threads": settings.threads}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(driven.answer(json.loads(line))), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    # Some libraries leave threads behind that would keep the process; its parent waits for its end.
    os._exit(main())
