"""Cost profiles of simple shapes."""

from services.domain.cost import CostProfile, DecodeCost, PrefillCost


def flat_cost(iteration_s: float) -> CostProfile:
    """Every iteration takes the same time."""
    return CostProfile((PrefillCost(1, iteration_s),), (DecodeCost(1, 1, iteration_s),))


def proportional_cost(prefill_s_per_token: float, decode_s: float, *, least_tokens: int = 1) -> CostProfile:
    """A prefill takes its time for every token, and at least that of `least_tokens`; a decode takes always the same."""
    prefill = tuple(PrefillCost(tokens, tokens * prefill_s_per_token) for tokens in (least_tokens, 10_000))
    return CostProfile(prefill, (DecodeCost(1, 1, decode_s),))
