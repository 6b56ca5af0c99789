"""ENST, the estimated next scheduled time of a job, as the paper defines it (PAPER 3).

    ENST(i)      = min(T_promote(i), T_execute(i))
    T_promote(i) = time until the starvation promotion of i
    T_execute(i) = sum over all jobs j above i of T_execute(i, j), divided by B, the maximum batch size
    T_execute(i, j) = sum of quantum(k) over the levels k that j burns through until it reaches i's level

T_execute depends on i only through its level b: the n_a jobs of each level a < b burn the quanta of levels a to b - 1,
so

    T_execute(b) = sum over k < b of quantum(k) * (n_0 + ... + n_k) / B,

which one pass over the levels computes for all levels: no decision looks at every job. Jobs of one level tie, and ties
are broken by rank.
"""

from collections.abc import Sequence
from itertools import accumulate


def execute_s_by_level(level_counts: Sequence[int], quanta_s: Sequence[float], max_batch: int) -> list[float]:
    """T_execute in seconds of a job on each level, and of one below the last. Without quanta it is 0 for all jobs, so
    that rank alone decides.
    """
    padded = [*level_counts[: len(quanta_s)], *([0] * (len(quanta_s) - len(level_counts)))]
    burnt = (quantum_s * jobs / max_batch for quantum_s, jobs in zip(quanta_s, accumulate(padded), strict=True))
    return list(accumulate(burnt, initial=0.0))


def enst_s(level: int, execute_s: Sequence[float], waited_s: float, starvation_limit_s: float | None) -> float:
    """ENST in seconds of a job on `level` that has waited for `waited_s`. `starvation_limit_s` None: no job is
    promoted.
    """
    until_executed_s = execute_s[level] if level < len(execute_s) else execute_s[-1]
    if starvation_limit_s is None:
        return until_executed_s
    until_promoted_s = starvation_limit_s - waited_s
    if until_promoted_s >= until_executed_s:
        return until_executed_s
    return until_promoted_s if until_promoted_s > 0.0 else 0.0
