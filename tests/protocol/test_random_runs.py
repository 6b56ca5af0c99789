"""Long random runs of worlds that are too large to explore, with all mishaps.

Here no two states are ever taken for one: each machine lives its whole life in one piece, as it does in a service.
Links are slow in turn, so that one peer is often far behind another.
"""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from services.kvmanager.policies.kv_config import KV_POLICY_NAMES
from services.scheduler.scheduler_config import PolicyName
from tests.protocol.instance import Instance, JobSize
from tests.protocol.world import Step, World

MOST_STEPS = 6_000
STEPS_OF_A_SPELL = 40


@st.composite
def instances(draw: st.DrawFn) -> Instance:
    """Up to six jobs with a pool that holds about two of them."""
    count = draw(st.integers(2, 6))
    sizes = st.builds(JobSize, st.integers(1, 7), st.integers(1, 7))
    jobs = tuple(draw(sizes) for _ in range(count))
    block_size = draw(st.integers(1, 3))
    largest = max(-(-(job.prompt_tokens + job.max_tokens - 1) // block_size) for job in jobs)
    numbers = st.frozensets(st.integers(0, count - 1))
    plans_in_flight = draw(st.sampled_from([1, 2, 3, 8]))
    return Instance(
        jobs=jobs,
        device_blocks=draw(st.integers(largest, 2 * largest)),
        host_blocks=draw(st.integers(0, 3 * largest)),
        block_size=block_size,
        policy=draw(st.sampled_from(PolicyName)),
        kv_policy=draw(st.sampled_from(KV_POLICY_NAMES)),
        max_batch=draw(st.integers(1, 4)),
        plans_in_flight=plans_in_flight,
        plans_ahead=draw(st.integers(0, plans_in_flight - 1)),
        lookahead_tokens=draw(st.integers(0, 3)),
        reserve_share=draw(st.sampled_from([0.25, 0.5])),
        protected_plans=draw(st.integers(0, 4)),
        prefill_chunk_tokens=draw(st.sampled_from([None, None, 2])),
        late_arrivals=True,
        cancels=draw(numbers),
        early_ends=draw(numbers),
        kills=draw(st.integers(0, 2)),
        breaks=draw(st.integers(0, 2)),
        waits=draw(st.integers(0, 6)),
        merged_turns=True,
    )


class Dice:
    """Chooses among the possible steps: some kinds are rare for a while, mishaps always."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._weights: dict[str, float] = {}
        self._left = 0

    def choose(self, steps: list[Step]) -> Step:
        """Choose one of the steps."""
        if self._left == 0:
            self._left = STEPS_OF_A_SPELL
            self._weights = {}
        self._left -= 1
        return self._random.choices(steps, [self._weight(step) for step in steps])[0]

    def _weight(self, step: Step) -> float:
        if World.is_mishap(step):
            return 0.02
        return self._weights.setdefault(str(step[0]), self._random.choice((0.02, 0.3, 1.0, 1.0)))


@settings(max_examples=40)
@given(instance=instances(), seed=st.integers(0, 2**32 - 1))
def test_a_long_random_run_is_safe_and_ends_with_all_jobs_ended_and_all_blocks_free(
    instance: Instance, seed: int
) -> None:
    world = World(instance, merge=False)
    dice = Dice(seed)
    state = world.start()
    for _ in range(MOST_STEPS):
        steps = list(world.possible(state))
        if all(world.is_mishap(step) for step in steps):
            assert world.is_end(state), "nothing goes on, and not everybody ended"
            return
        state = world.take(state, dice.choose(steps))
    raise AssertionError(f"no end after {MOST_STEPS} steps")
