"""The flags of a workload, the same for `bench` and `simulate`."""

import argparse
import json
from pathlib import Path

import pytest

from services.cli.workload_flags import add_workload, chosen_workload
from services.runtime.command_line import CommandError, OneLineParser
from services.workloads.any_workload import AnyWorkload, TraceFile, trace_of, workload_as_json
from services.workloads.workload import Workload, WorkloadKind

JOB = {"arrival_s": 3.0, "prompt_tokens": 3, "output_tokens": 2}


def chosen(*argv: str) -> AnyWorkload:
    parser: argparse.ArgumentParser = OneLineParser(allow_abbrev=False)
    add_workload(parser)
    arguments = parser.parse_args(list(argv))
    return chosen_workload(arguments, arguments.seed)


def test_without_flags_it_is_a_bursty_zipf_workload() -> None:
    assert chosen() == Workload(200, 4.0, 4.0, 1.1, 512, 256, seed=0)
    assert workload_as_json(chosen()) == {
        "workload": "zipf",
        "jobs": 200,
        "rate": 4.0,
        "cv": 4.0,
        "theta": 1.1,
        "max_prompt_tokens": 512,
        "max_output_tokens": 256,
        "seed": 0,
    }


def test_datasets_come_with_poisson_arrivals_unless_told_otherwise() -> None:
    workload = chosen("--workload", "sharegpt", "--seed", "3")
    assert isinstance(workload, Workload)
    assert (workload.kind, workload.cv, workload.max_prompt_tokens, workload.seed) == (
        WorkloadKind.SHAREGPT,
        1.0,
        1024,
        3,
    )
    bursty = chosen("--workload", "alpaca", "--cv", "4")
    assert isinstance(bursty, Workload)
    assert bursty.cv == 4.0
    assert "theta" not in workload_as_json(bursty)


def test_a_ratio_is_of_ratio_workloads() -> None:
    workload = chosen("--workload", "ratio", "--ratio", "16", "--jobs", "3")
    assert workload_as_json(workload)["ratio"] == 16.0
    assert len(trace_of(workload)) == 3
    with pytest.raises(CommandError, match="--ratio does not apply to --workload zipf"):
        chosen("--ratio", "16")


def test_a_trace_is_read_and_keeps_its_times_unless_it_gets_a_rate(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("".join(json.dumps(JOB | {"arrival_s": second}) + "\n" for second in (1.0, 3.0, 5.0)))
    workload = chosen("--trace", str(path))
    assert [job.arrival_s for job in trace_of(workload)] == [1.0, 3.0, 5.0]
    assert workload_as_json(workload) == {"trace": str(path), "seed": 0}
    assert isinstance(workload, TraceFile)
    faster = TraceFile(workload.path, workload.jobs, 0, rate=4.0)
    assert [job.arrival_s for job in trace_of(faster)] == [0.0, 0.25, 0.5]
    assert workload_as_json(faster)["rate"] == 4.0


@pytest.mark.parametrize(
    "argv",
    [
        ("--trace", "{trace}", "--workload", "zipf"),
        ("--trace", "{trace}", "--rate", "2"),
        ("--workload", "alpaca", "--theta", "1"),
        ("--jobs", "1000001"),
        ("--max-prompt-tokens", "1000001"),
        ("--rate", "inf"),
        ("--rate", "1e-320"),
        ("--cv", "1e200"),
        ("--cv", "1e-200"),
        ("--theta", "1e300"),
        ("--ratio", "0"),
    ],
)
def test_flags_that_do_not_go_together_or_are_beyond_their_limits_are_refused(
    argv: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "t.jsonl").write_text(json.dumps(JOB))
    with pytest.raises(CommandError):
        chosen(*(part.format(trace=tmp_path / "t.jsonl") for part in argv))
