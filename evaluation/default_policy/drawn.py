"""Cells that nobody chose: workload, server and load are drawn, so that the default policy is also judged where its
constants were not. A number always draws the same cell. Pure.
"""

from random import Random

from evaluation.default_policy.cells import A100, H100, OPT_13B, Cell, judged_by
from evaluation.default_policy.traffic import Shape

DRAWN = 100
LEAST_JOBS, MOST_JOBS, JOBS_OF_A_BATCH = 2500, 12_000, 45
"""Jobs of a run: enough for the batch to be filled many times."""
CONV_JOBS, CODE_JOBS = 6000, 3500
FIRST_SEED = 100
"""Other seeds than those of the chosen cells."""
LONGEST_TOKENS = (256, 512, 1024)


def drawn_cell(number: int) -> Cell:
    """The cell of a number."""
    draw = Random(f"sweep/{number}")
    kind = draw.choice(["conv", "code", "zipf", "zipf", "zipf", "sharegpt", "sharegpt", "alpaca"])
    batch = draw.choice([8, 16, 32, 64, 128, 256])
    profile = draw.choice([H100, A100, OPT_13B])
    cv, wave = float(draw.choice([1, 1, 2, 4])), draw.choice([0.0, 0.0, 0.0, 0.6])
    jobs = min(MOST_JOBS, max(LEAST_JOBS, JOBS_OF_A_BATCH * batch))
    cv, arrivals = (1.0, "wave") if wave else (cv, f"CV {cv:g}")
    if kind == "conv":
        shape, what = Shape("conv", min(jobs, CONV_JOBS)), "conv"
    elif kind == "code":
        cv = float(draw.choice([1, 4, 13]))
        shape, what, batch = Shape("code", CODE_JOBS, cv=cv), f"code, CV {cv:g}", max(batch, 32)
    elif kind == "zipf":
        theta, longest = draw.choice([0.9, 1.0, 1.2, 1.35, 1.5, 1.7, 1.9]), draw.choice(LONGEST_TOKENS)
        shape = Shape("zipf", jobs, theta=theta, longest_tokens=longest, cv=cv, wave=wave)
        what = f"Zipf {theta:g} to {longest}, {arrivals}"
    elif kind == "sharegpt":
        sigma = draw.choice([None, None, 0.7, 1.3])
        shape = Shape("sharegpt", jobs, sigma=sigma, cv=cv, wave=wave)
        what = f"ShareGPT-like, {arrivals}" if sigma is None else f"ShareGPT-like, sigma {sigma:g}, {arrivals}"
    else:
        shape, what = Shape("alpaca", 2 * jobs, cv=cv, wave=wave), f"Alpaca-like, {arrivals}"
    pool, chunk = draw.choice(["ample", "ample", "quarter"]), draw.choice([None, None, None, 512])
    if shape.kind in ("conv", "code") and profile == OPT_13B:
        profile = H100  # prompts of these are longer than its context
    load = draw.choice([0.6, 0.8, 0.9, 0.95, 1.0, 1.1, 1.2, 1.3])
    extras = [*(["a quarter of the KV"] if pool == "quarter" else []), *([f"chunks of {chunk}"] if chunk else [])]
    title = ", ".join([f"{number}: {what}, {profile}, batch {batch}", *extras])
    return Cell(title, profile, batch, shape, (load,), (FIRST_SEED + number,), pool, chunk, judged_by(pool))


DRAWN_CELLS = tuple(map(drawn_cell, range(DRAWN)))
