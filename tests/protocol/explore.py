"""Explore an instance of your own choice, larger than those of the tests.

    python -m tests.protocol.explore --jobs 1:3,2:2,1:2 --device-blocks 4 --kv-policy proactive --kills 1 --cancels 0,1

Prints what was seen, or the shortest way to what must not be.
"""

import argparse
import sys
import time
from collections.abc import Sequence

from services.kvmanager.policies.kv_config import KV_POLICY_NAMES
from services.scheduler.scheduler_config import PolicyName
from tests.protocol.explorer import CounterexampleError, TooManyStatesError, explore
from tests.protocol.instance import FLAT_PROFILE, STEEP_PROFILE, Instance, JobSize


def _job_sizes(text: str) -> tuple[JobSize, ...]:
    sizes = [part.split(":") for part in text.split(",")]
    return tuple(JobSize(int(prompt), int(most)) for prompt, most in sizes)


def _job_numbers(text: str) -> frozenset[int]:
    return frozenset(int(part) for part in text.split(",") if part)


def _arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="All interleavings of scheduler, KV manager and worker.")
    parser.add_argument("--jobs", type=_job_sizes, default="1:3,1:3", help="prompt tokens:max tokens, ...")
    parser.add_argument("--device-blocks", type=int, default=3)
    parser.add_argument("--host-blocks", type=int, default=3)
    parser.add_argument("--block-size", type=int, default=1)
    parser.add_argument(
        "--policy", choices=[name.value for name in PolicyName], default=PolicyName.SKIP_JOIN_MLFQ.value
    )
    parser.add_argument("--kv-policy", choices=KV_POLICY_NAMES, default="proactive")
    parser.add_argument("--steep", action="store_true", help="a prefill takes a second a token, not one in all")
    parser.add_argument("--max-batch", type=int, default=1)
    parser.add_argument("--plans-in-flight", type=int, default=2)
    parser.add_argument("--plans-ahead", type=int, default=0, help="how many of them may be recalled")
    parser.add_argument("--prefill-chunk", type=int, default=None)
    parser.add_argument("--lookahead-tokens", type=int, default=0)
    parser.add_argument("--reserve-share", type=float, default=0.5)
    parser.add_argument("--all-at-once", action="store_true", help="no late arrivals")
    parser.add_argument("--cancels", type=_job_numbers, default="", help="numbers of jobs that may be cancelled")
    parser.add_argument("--again", type=_job_numbers, default="", help="those that may come again under the same id")
    parser.add_argument("--moves", type=int, default=0, help="times that a job may leave for another group and return")
    parser.add_argument("--holds", type=int, default=0, help="times that a job may be held because the worker will end")
    parser.add_argument("--early-ends", type=_job_numbers, default="", help="numbers of jobs that may end early")
    parser.add_argument("--kills", type=int, default=0, help="times that the worker may die")
    parser.add_argument("--breaks", type=int, default=0, help="times that scheduler and KV manager may lose each other")
    parser.add_argument("--waits", type=int, default=0, help="times that the starvation limit may pass")
    parser.add_argument("--merged-turns", action="store_true")
    parser.add_argument("--most-states", type=int, default=20_000_000)
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0 if every path ends well, 1 if one does not, 2 if not all states were explored."""
    arguments = _arguments(argv)
    instance = Instance(
        jobs=arguments.jobs,
        device_blocks=arguments.device_blocks,
        host_blocks=arguments.host_blocks,
        block_size=arguments.block_size,
        profile=STEEP_PROFILE if arguments.steep else FLAT_PROFILE,
        policy=PolicyName(arguments.policy),
        kv_policy=arguments.kv_policy,
        max_batch=arguments.max_batch,
        plans_in_flight=arguments.plans_in_flight,
        plans_ahead=arguments.plans_ahead,
        lookahead_tokens=arguments.lookahead_tokens,
        reserve_share=arguments.reserve_share,
        prefill_chunk_tokens=arguments.prefill_chunk,
        late_arrivals=not arguments.all_at_once,
        cancels=arguments.cancels,
        again=arguments.again,
        moves=arguments.moves,
        holds=arguments.holds,
        early_ends=arguments.early_ends,
        kills=arguments.kills,
        breaks=arguments.breaks,
        waits=arguments.waits,
        merged_turns=arguments.merged_turns,
    )
    began = time.monotonic()
    try:
        print(explore(instance, arguments.most_states))
    except CounterexampleError as found:
        print(found)
        return 1
    except TooManyStatesError as found:
        print(f"{found}; nothing wrong was found")
        return 2
    finally:
        print(f"{time.monotonic() - began:.1f} s", file=sys.stderr)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
