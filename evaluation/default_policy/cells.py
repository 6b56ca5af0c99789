"""What the default policy is judged on: a cell is a server under a traffic at some loads, for some systems. Pure.

A load is relative to what the best form of FCFS sustains of these lengths with a pool that never fills. `pool`:
"ample", or "quarter", a quarter of the peak need: the most tokens that all jobs hold at a time if each holds its own
from its arrival to its end under FCFS with an ample pool (as in the demo).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from evaluation.default_policy.traffic import Shape
from services.scheduler.scheduler_config import PolicyName

H100, A100, OPT_13B = "llama-3-8b-h100", "llama-3-8b-a100-40gb", "opt-13b-a100-40gb"


@dataclass(frozen=True, slots=True)
class Contender:
    """A policy and a KV policy. `share`: `--first-token-share`, None for the default."""

    label: str
    policy: PolicyName
    kv_policy: str
    share: float | None = None


FCFS_RECOMPUTE = Contender("FCFS, recomputes", PolicyName.FCFS, "recompute")
FCFS_SWAPS = Contender("FCFS, swaps", PolicyName.FCFS, "proactive")
FCFS_RESERVES = Contender("FCFS, reserves", PolicyName.FCFS, "defer")
SKIP_JOIN = Contender("skip-join MLFQ", PolicyName.SKIP_JOIN_MLFQ, "proactive")
GITTINS = Contender("gittins", PolicyName.GITTINS, "proactive")
GITTINS_REACTIVE = Contender("gittins, no reserve", PolicyName.GITTINS, "reactive")
GITTINS_SHARES = Contender("gittins, share 1", PolicyName.GITTINS, "proactive", 1.0)
SRPT = Contender("SRPT oracle", PolicyName.SRPT, "proactive")
FCFS_FORMS = (FCFS_RECOMPUTE, FCFS_SWAPS, FCFS_RESERVES)

AMPLE = (FCFS_RECOMPUTE, SKIP_JOIN, GITTINS, SRPT)
"""With a pool that never fills, the forms of FCFS without reservation are the same, and reservation costs nothing."""
SCARCE = (*FCFS_FORMS, SKIP_JOIN, GITTINS, GITTINS_REACTIVE, SRPT)


def judged_by(pool: str) -> tuple[Contender, ...]:
    """Where the default alone is judged: the forms of FCFS that differ with this pool, the default, and the oracle."""
    return (*(FCFS_FORMS if pool == "quarter" else (FCFS_RECOMPUTE,)), GITTINS, SRPT)


@dataclass(frozen=True, slots=True)
class Cell:
    """`chunk` is of prefills, None for whole prompts."""

    title: str
    profile: str
    batch: int
    shape: Shape
    loads: tuple[float, ...]
    seeds: tuple[int, ...]
    pool: str = "ample"
    chunk: int | None = None
    contenders: tuple[Contender, ...] = AMPLE

    def points(self) -> Iterator[tuple["Cell", float, int]]:
        """Each load with each seed."""
        for load in self.loads:
            for seed in self.seeds:
                yield self, load, seed


CONV = Shape("conv", 3500)
CODE = Shape("code", 3500, cv=13.0)
SEEDS = (1, 2)
"""Other than those on which the constants of the order were chosen; those of lending were chosen on the first of these,
and on the waves.
"""
_LOADS = (0.8, 0.95, 1.1, 1.3)
_SHARES = (0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 1.0)

CONV_CELLS = (
    *(Cell(f"conv, batch {batch}", H100, batch, CONV, _LOADS, SEEDS) for batch in (16, 64, 256)),
    Cell("conv, batch 64, chunks of 512", H100, 64, CONV, (0.8, 0.95, 1.3), SEEDS, chunk=512),
    *(
        Cell(
            f"conv, batch {batch}, a quarter of the KV",
            H100,
            batch,
            CONV,
            (0.9, 1.2),
            SEEDS,
            pool="quarter",
            contenders=SCARCE,
        )
        for batch in (16, 64, 256)
    ),
)
CODE_CELLS = (
    Cell("code", H100, 64, CODE, (0.8, 1.0, 1.3), SEEDS),
    Cell("code, a quarter of the KV", H100, 64, CODE, (0.8, 1.3), SEEDS, pool="quarter", contenders=SCARCE),
)


def _zipf(theta: float) -> Shape:
    return Shape("zipf", 6000, cv=4.0, theta=theta, longest_tokens=512)


ZIPF_CELLS = (
    *(Cell(f"Zipf {theta}, CV 4", OPT_13B, 16, _zipf(theta), (0.8, 1.0, 1.2), SEEDS) for theta in (1.1, 1.4, 1.6, 1.8)),
    *(
        Cell(
            f"Zipf {theta}, CV 4, a quarter of the KV",
            OPT_13B,
            16,
            _zipf(theta),
            (0.8, 1.0),
            SEEDS,
            pool="quarter",
            contenders=SCARCE,
        )
        for theta in (1.1, 1.6)
    ),
)
BURST_CELLS = tuple(
    Cell(
        f"Zipf 1.4, CV {cv:g}",
        OPT_13B,
        16,
        Shape("zipf", 6000, cv=cv, theta=1.4, longest_tokens=512),
        (0.9,),
        SEEDS,
    )
    for cv in (1.0, 2.0, 4.0, 8.0)
)
"""The title of CV 4 is that of a cell above, at other loads."""
SHAREGPT_CELLS = (
    *(
        Cell(
            f"ShareGPT-like, sigma {sigma:g}",
            OPT_13B,
            16,
            Shape("sharegpt", 2500, sigma=sigma),
            (0.8, 0.95, 1.1),
            (1,),
        )
        for sigma in (0.5, 1.0, 1.5)
    ),
    Cell(
        "ShareGPT-like, a quarter of the KV",
        OPT_13B,
        16,
        Shape("sharegpt", 2500),
        (0.8, 0.95),
        SEEDS,
        pool="quarter",
        contenders=SCARCE,
    ),
    Cell("ShareGPT-like, batch 64", A100, 64, Shape("sharegpt", 3500), (0.8, 0.95, 1.1), SEEDS),
    Cell("Alpaca-like", OPT_13B, 16, Shape("alpaca", 3500), (0.8, 0.95, 1.1), SEEDS),
)
WAVE_CELLS = tuple(
    Cell(f"wave, {title}", H100, 256, shape, loads, (2, 3), contenders=(*AMPLE, GITTINS_SHARES))
    for title, shape, loads in (
        ("ShareGPT-like", Shape("sharegpt", 6000, wave=0.6), (0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 1.0, 1.1, 1.2)),
        ("Alpaca-like", Shape("alpaca", 20_000, wave=0.6), (0.7, 0.75, 0.8, 0.85, 0.9, 1.0)),
        ("Zipf 1.1", Shape("zipf", 10_000, theta=1.1, wave=0.6), (0.75, 0.8, 0.85, 0.9, 1.0, 1.1, 1.15, 1.2)),
    )
)
"""At enough loads to tell the one up to which nearly all jobs are within the limits."""
CURVE_CELLS = tuple(
    Cell(
        title,
        H100,
        batch,
        CONV,
        (load,),
        SEEDS,
        contenders=(
            FCFS_RECOMPUTE,
            *(Contender(f"share {share:g}", PolicyName.GITTINS, "proactive", share) for share in _SHARES),
        ),
    )
    for title, batch, load in (("curve, batch 64", 64, 1.1), ("curve, batch 16", 16, 1.1))
)

CELLS = (*CONV_CELLS, *CODE_CELLS, *ZIPF_CELLS, *BURST_CELLS, *SHAREGPT_CELLS, *WAVE_CELLS)
"""Those on which it is judged."""
QUICK_CELLS = (
    Cell("conv, batch 64", H100, 64, Shape("conv", 300), (1.0,), (0,)),
    Cell("Zipf 1.6, CV 4", OPT_13B, 16, Shape("zipf", 500, cv=4.0, theta=1.6, longest_tokens=512), (1.2,), (1,)),
)
