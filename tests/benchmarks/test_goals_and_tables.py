"""How benchmarks name a machine and tell their figures."""

import json
from pathlib import Path

import pytest

from benchmarks.decisions import SERVICES
from benchmarks.goals_and_tables import Goal, Table, at_least, at_most, goals_table, section
from benchmarks.machine import cpu_field, slug
from benchmarks.policies import KV_POLICIES, POLICIES
from benchmarks.run import chosen
from benchmarks.saturated_fcfs import job_records
from benchmarks.settings import BenchError
from benchmarks.streams import most_jobs
from benchmarks.summary import summary
from benchmarks.throughput import plan_wait_share
from services.kvmanager.policies.kv_config import KV_POLICY_NAMES
from services.scheduler.scheduler_config import PolicyName

MACHINE = {
    "cpu": "AMD EPYC",
    "cores": 2,
    "flags": ["avx2"],
    "memory_gib": 8.0,
    "system": "Linux 6.1",
    "python": "3.11.7",
    "torch": "2.13.0",
}


@pytest.mark.parametrize(
    ("model", "generation", "flags", "cores", "name"),
    [
        ("AMD EPYC", ["25", "1"], ["fma", "avx2"], 2, "cpu-amd-epyc-25-1-avx2-2c"),
        ("AMD EPYC", ["25", "17"], ["avx2", "avx512f", "avx512_bf16"], 2, "cpu-amd-epyc-25-17-avx512-bf16-2c"),
        ("AMD EPYC", ["26", "2"], ["avx2", "avx512f", "avx512_bf16"], 2, "cpu-amd-epyc-26-2-avx512-bf16-2c"),
        (
            "Intel(R) Xeon(R) Platinum 8481C CPU @ 2.70GHz",
            ["6", "143"],
            ["avx2", "avx512f", "avx512_bf16", "amx_tile", "amx_bf16"],
            4,
            "cpu-intel-xeon-platinum-8481c-6-143-amx-4c",
        ),
        ("AMD EPYC 7B13 64-Core Processor", ["25", "1"], ["avx512f", "avx2"], 8, "cpu-amd-epyc-7b13-25-1-avx512-8c"),
        ("", [None, None], [], 1, "cpu-unknown-1c"),
    ],
)
def test_a_folder_of_results_is_named_after_processor_generation_instruction_set_and_cores(
    model: str, generation: list[str | None], flags: list[str], cores: int, name: str
) -> None:
    assert slug(model, generation, flags, cores) == name


def test_a_field_of_the_processor_is_its_first_value() -> None:
    text = "processor\t: 0\nmodel name\t: A: B\nmodel\t\t: 2\n\nprocessor\t: 1\nmodel name\t: C\n"
    assert cpu_field(text, "model name") == "A: B"
    assert cpu_field(text, "model") == "2"
    assert cpu_field(text, "flags") is None


def test_a_goal_is_met_at_its_very_limit() -> None:
    assert at_least("tokens/s", 600.0, 600.0) == Goal("tokens/s", ">= 600", "600", True)
    assert at_most("memory", 200.1, 200.0, " MB") == Goal("memory", "<= 200 MB", "200.1 MB", False)


def test_tables_are_told_as_markdown() -> None:
    table = Table("Sizes", ("name", "a"), [("x", "1"), ("y", "2")])
    assert section(table) == "### Sizes\n\n| name | a |\n| :--- | ---: |\n| x | 1 |\n| y | 2 |"
    assert goals_table([at_most("a", 2, 1)]).endswith("| a | <= 1 | 2 | **no** |")


def test_the_share_of_waiting_for_plans_is_of_all_time_that_the_worker_could_work() -> None:
    result = {"scheduler": {"plan_wait_s": 1.0, "busy_s": 7.0}, "kv": {"stall_s": 2.0}}
    assert plan_wait_share(result) == pytest.approx(0.1)
    assert plan_wait_share({"scheduler": {"plan_wait_s": 0.0, "busy_s": 0.0}, "kv": {"stall_s": 0.0}}) == 0.0


def test_a_part_that_does_not_exist_is_refused_by_name() -> None:
    assert [part.name for part in chosen("streams,decisions")] == ["decisions", "streams"]
    with pytest.raises(BenchError, match="there is no part speed"):
        chosen("decisions,speed")


def test_the_summary_tells_the_parts_that_are_there() -> None:
    decisions = {service: {"10": {"median_us": 40.0, "p99_us": 90.0}} for service in SERVICES}
    measured = {"max_batch": {"scheduler": 16, "kvmanager": 16}, **decisions}
    text = summary({"decisions": {"quick": False, "machine": MACHINE, "measured": measured}})
    assert "AMD EPYC, 2 cores (avx2), 8.0 GiB, Linux 6.1, Python 3.11.7, torch 2.13.0" in text
    assert "| scheduler: median decision, 10 jobs queued | <= 100 us | 40 us | yes |" in text
    assert "### A decision at batch 16: microseconds" in text
    assert "Output tokens" not in text


def test_most_jobs_at_once_counts_a_job_wherever_it_is(tmp_path: Path) -> None:
    samples = [{"groups": [{"running": 1, "waiting": count, "swapped_out": 2}]} for count in (3, 9, 4)]
    status = tmp_path / "status.jsonl"
    status.write_text("".join(json.dumps(sample) + "\n" for sample in samples))
    assert most_jobs(status) == 12


def test_jobs_of_a_trace_run_are_read_back_with_even_gaps(tmp_path: Path) -> None:
    ended = {"id": "a", "arrival_s": 0.0, "prompt_tokens": 5, "first_token_s": 1.0, "last_token_s": 3.0}
    failed = {"id": "b", "arrival_s": 0.0, "prompt_tokens": 5, "first_token_s": None, "last_token_s": None}
    lines = [{**ended, "output_tokens": 3, "error": None}, {**failed, "output_tokens": 0, "error": "gone"}]
    (tmp_path / "jobs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    first, second = job_records(tmp_path)
    assert list(first.gaps_s) == pytest.approx([1.0, 1.0])
    assert (first.first_token_s, first.output_tokens, second.error) == (1.0, 3, "gone")


def test_every_policy_there_is_gets_measured() -> None:
    assert set(POLICIES) == {name.value for name in PolicyName}
    assert {"proactive", *KV_POLICIES} == set(KV_POLICY_NAMES)
