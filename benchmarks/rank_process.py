"""One rank of a group without services, in a process of its own: what `ranks` measures.

    python -m benchmarks.rank_process --parent PID --port PORT --rank 0 --tp 1 --pp 2 --threads 1 --model DIR ...

All ranks meet at a store at 127.0.0.1:PORT, which rank 0 serves. Each prints its figures as a line of JSON at the end.
"""

import argparse
import json
from pathlib import Path

from services.runtime.process import die_with_parent
from services.worker.engine.compute_environment import set_compute_environment


def main(argv: list[str] | None = None) -> int:
    """Runs one rank for the time asked."""
    parser = argparse.ArgumentParser(description="One rank of a group without services.", allow_abbrev=False)
    for name in ("parent", "port", "rank", "tp", "pp", "threads", "seconds", "max-batch", "max-batch-tokens"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--trace", type=Path, required=True)
    parser.add_argument("--no-shared-memory", action="store_true")
    parser.add_argument("--kernels", choices=("native", "torch"), default="native")
    arguments = parser.parse_args(argv)
    die_with_parent(arguments.parent)
    # As in a worker, torch is imported only once its environment is set.
    set_compute_environment()
    from benchmarks.rank_under_test import run_rank

    print(json.dumps(run_rank(arguments)), flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
