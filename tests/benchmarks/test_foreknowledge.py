"""What the traces of the benchmark of foreknowledge say about lengths, and that gains and harm are told."""

from collections.abc import Sequence
from statistics import correlation, fmean

from benchmarks.foreknowledge import (
    FCFS,
    FORESEEABLE,
    LONGEST_TOKENS,
    OFF,
    ONLINE,
    TRACES,
    VARIANTS,
    WITHOUT,
    Task,
    Traffic,
    goals,
    tables,
)

JOBS = 900


def explained(traffic: Traffic) -> float:
    """Correlation of the lengths' octaves with the mean of the job's client."""
    octaves = [job.output_tokens.bit_length() for job in traffic.trace]
    of_client: dict[str, list[int]] = {}
    for job, octave in zip(traffic.trace, octaves, strict=True):
        of_client.setdefault(job.client, []).append(octave)
    return correlation(octaves, [fmean(of_client[job.client]) for job in traffic.trace])


def test_names_tell_lengths_in_the_traces_of_clients_and_nothing_where_they_are_unrelated() -> None:
    assert explained(TRACES["clients"](JOBS, 1)) > 0.9
    assert explained(TRACES["many clients"](JOBS, 1)) > 0.9
    assert explained(TRACES["unrelated"](JOBS, 1)) < 0.2
    lengths = [[job.output_tokens for job in TRACES[name](JOBS, 1).trace] for name in ("clients", "unrelated")]
    assert lengths[0] == lengths[1]


def test_jobs_ask_for_one_to_eight_times_what_they_make_where_max_tokens_tells() -> None:
    traffic = TRACES["max_tokens"](JOBS, 1)
    assert traffic.max_tokens is not None
    asked = list(zip(traffic.trace, traffic.max_tokens, strict=True))
    assert all(job.output_tokens <= most <= min(8 * job.output_tokens + 1, LONGEST_TOKENS) for job, most in asked)
    assert not any(job.client for job, _ in asked)


def test_segments_of_the_public_trace_differ_by_seed() -> None:
    first, second = (TRACES["conv"](JOBS, seed).trace for seed in (1, 2))
    assert len(first) == len(second) == JOBS
    assert second[0].arrival_s > first[-1].arrival_s


def means_of(runs: Sequence[dict[str, float]]) -> dict[object, float]:
    return {run["variant"]: run["mean_jct_s"] for run in runs}


def test_with_names_that_say_something_jobs_end_sooner_and_names_that_say_nothing_do_no_harm() -> None:
    """The gain grows with the jobs: so few just teach."""
    related, unrelated = (
        means_of(Task(trace, 3, jobs, (1.2,)).run()) for trace, jobs in (("clients", 600), ("unrelated", 200))
    )
    assert related[ONLINE.name] < 0.96 * related[WITHOUT.name]
    assert related[OFF.name] < 0.96 * related[WITHOUT.name]
    assert related[WITHOUT.name] < related[FCFS.name]
    assert unrelated[ONLINE.name] < 1.05 * unrelated[WITHOUT.name]
    assert unrelated[OFF.name] < 1.05 * unrelated[WITHOUT.name]


def test_goals_and_tables_tell_means_over_seeds_against_gittins_without_names() -> None:
    means = {FCFS: 9.0, WITHOUT: 4.0, OFF: 3.0, ONLINE: 3.5}
    runs = [
        {
            "trace": trace,
            "seed": seed,
            "load": 1.2,
            "variant": variant.name,
            "mean_jct_s": means[variant] + seed,
            "p99_jct_s": 8.0,
        }
        for trace in TRACES
        for seed in (-1, 1)
        for variant in VARIANTS
    ]
    measured = {"profile": "p", "max_batch": 2, "jobs": 3, "seeds": [-1, 1], "loads": [1.2], "runs": runs}
    assert [goal.met for goal in goals(measured)] == [True] * len(TRACES)
    assert goals(measured)[0].measured == "12.5%"
    means_table, p99_table = tables(measured)
    assert means_table.rows[0] == ("clients, 1.2", "9", "4", "3 (-25.0%)", "3.5 (-12.5%)")
    assert p99_table.rows[-1] == ("conv, 1.2", "8", "8", "8 (+0.0%)", "8 (+0.0%)")
    assert set(FORESEEABLE) < set(TRACES)
    slower = [run | {"mean_jct_s": 4.3} if run["variant"] == ONLINE.name else run for run in runs]
    assert [goal.met for goal in goals(measured | {"runs": slower})] == [False] * len(TRACES)
