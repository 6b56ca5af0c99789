"""PAPER's worked example: three jobs that come at once, and their mean latency under each policy."""

from services.scheduler.scheduler_config import PolicyName
from tests.builders.cost_profiles import proportional_cost

EXAMPLE_COST = proportional_cost(0.001, 0.2, least_tokens=200)
"""A prefill of n tokens takes n ms, and 0.2 s at least: q1 of the example. A decode takes 0.2 s."""

EXAMPLE_JOBS = (("long", 2700, 3), ("short", 300, 4), ("middle", 800, 5))
"""Names, tokens of the prompt, tokens of the output."""

EXAMPLE_MEANS_S = (
    (PolicyName.FCFS, 4.2333),
    (PolicyName.MLFQ, 5.0),
    (PolicyName.SKIP_JOIN_MLFQ, 3.2667),
    (PolicyName.SRPT, 3.0),
    (PolicyName.STATIC, 4.2333),
    (PolicyName.FIXED_PRIORITY, 3.0),
)
