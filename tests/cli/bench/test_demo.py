"""The demo's course, with gateways that generate nonsense at once."""

import io
import json
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from itertools import permutations
from pathlib import Path

import pytest
from rich.console import Console

from services.cli.bench.demo import (
    PROBE_TOKENS,
    PROMPT,
    SLOW_PREFILL_S,
    ModelChoice,
    Stage,
    in_turn,
    is_last_pass,
    main,
    run,
    run_passes,
)
from services.cli.bench.demo_systems import (
    ALL_PAIRS,
    AS_VLLM,
    FCFS,
    OURS,
    PAPER,
    RESERVING,
    SHOWN_NAMES,
    server_flags,
    shown_forms,
    shown_systems,
)
from services.experiments.cases import PolicyPair
from services.loadgen.server_process import ServerAddresses
from services.runtime.model_files import BUNDLED_MODEL
from services.runtime.profile_file import Profile, write_profile
from services.workloads.calibration import Need
from services.workloads.repeated_runs import Result
from tests.builders.cost_profiles import proportional_cost
from tests.fakes.fake_gateway_for_client import FakeGatewayForClient, serving

QUICK = Need(load=0.9, least_jobs=60, least_s=0.01, pool_tokens=16, pools_in_peak=1.0, cv_tolerance=10.0)
MODEL = Path("a-model")


class Servers:
    """Starts a fake gateway for every server. Remembers their flags, and whether they found a cost model; `up` is how
    many serve, `most_up` how many have served at a time.
    """

    def __init__(self) -> None:
        self.flags: list[Sequence[str]] = []
        self.knew_the_cost: list[bool] = []
        self.gateways: list[FakeGatewayForClient] = []
        self.up = self.most_up = 0

    @asynccontextmanager
    async def start(self, flags: Sequence[str], log: Path) -> AsyncIterator[ServerAddresses]:
        self.flags.append(flags)
        log.touch()
        kept = Path(flags[-1]) / "profiles" / "cost.json"
        self.knew_the_cost.append(kept.exists())
        kept.parent.mkdir(exist_ok=True)
        kept.touch()
        async with serving(FakeGatewayForClient()) as gateway:
            self.gateways.append(gateway)
            self.up += 1
            self.most_up = max(self.most_up, self.up)
            yield ServerAddresses(gateway.address, None, 0)
        self.up -= 1


def passes_of(out: Path, pair: PolicyPair) -> list[str]:
    return sorted(path.name for path in (out / "runs" / pair.name).glob("pass-*"))


async def test_the_demo_runs_one_trace_under_every_system_and_writes_everything(tmp_path: Path) -> None:
    servers = Servers()
    console = Console(file=io.StringIO(), width=140, record=True)
    await run(Stage(console, tmp_path, time.monotonic()), QUICK, 3, ModelChoice(MODEL), servers.start)

    # The bundled model shows a completion, then the trace is run on the other one.
    completing, *running = servers.flags
    assert completing == server_flags(OURS, BUNDLED_MODEL, tmp_path / "state" / "completion")
    assert running == [server_flags(pair, MODEL, tmp_path / "state" / pair.name) for pair in ALL_PAIRS]
    assert servers.most_up == len(ALL_PAIRS)
    assert [request.text for request in servers.gateways[0].requests] == [PROMPT]
    assert servers.knew_the_cost == [False, False, True, True, True, True]
    assert servers.up == 0
    jobs = len((tmp_path / "trace.jsonl").read_text().splitlines())
    assert jobs >= 60
    shown = [folder for folder in tmp_path.iterdir() if folder.name in SHOWN_NAMES]
    assert len(shown) == 4
    for folder in shown:
        assert json.loads((folder / "result.json").read_text())["jobs"] == jobs
        assert (folder / "jobs.jsonl").exists()
    assert {path.name for path in tmp_path.glob("*.png")} == {"latency.png", "levels.png", "kv.png"}
    text = console.export_text()
    for words in (
        f"With {MODEL} FCFS sustains",
        "worst gap of a job",
        "MB offloaded",
        "mean job completion",
    ):
        assert words in text

    # All forms of FCFS run in the first pass, what is shown in every pass, each time with other prompts.
    assert all(passes_of(tmp_path, pair) == ["pass-1", "pass-2", "pass-3"] for pair in (RESERVING, PAPER, OURS))
    assert sorted(len(passes_of(tmp_path, pair)) for pair in FCFS) == [1, 3, 3]
    prompts = [tuple(request.token_ids.ids) for request in servers.gateways[-1].requests[-3 * jobs :]]
    long = [prompt for prompt in prompts if len(prompt) > 3]
    assert len(set(long)) == len(long)


def test_a_machine_that_drifts_favours_nobody() -> None:
    first, second, third = (in_turn(ALL_PAIRS, done) for done in (0, 1, 2))
    assert {first.index(pair) + second.index(pair) for pair in ALL_PAIRS} == {len(ALL_PAIRS) - 1}
    assert third == first == list(ALL_PAIRS)


def test_without_a_number_there_are_as_many_passes_as_fit_the_time_and_at_least_two() -> None:
    assert not is_last_pass(done=1, asked=None, pass_s=100.0, elapsed_s=400.0)
    assert is_last_pass(done=2, asked=None, pass_s=100.0, elapsed_s=400.0)
    assert not is_last_pass(done=2, asked=None, pass_s=40.0, elapsed_s=210.0)
    assert is_last_pass(done=3, asked=None, pass_s=40.0, elapsed_s=280.0)


def test_a_number_of_passes_is_kept_however_long_they_take() -> None:
    assert [is_last_pass(done, asked=3, pass_s=400.0, elapsed_s=900.0) for done in (1, 2, 3)] == [False, False, True]


def test_an_earlier_demos_runs_are_gone_and_what_else_is_there_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[float, int | None, ModelChoice]] = []

    async def instead(stage: Stage, need: Need, passes: int | None, models: ModelChoice) -> bool:
        asked.append((need.least_s, passes, models))
        return True

    monkeypatch.setattr("services.cli.bench.demo.run", instead)
    for name in ("state", "runs", "mine"):
        (tmp_path / name).mkdir()
    assert main(["--out", str(tmp_path), "--seconds", "7", "--repeats", "4", "--model", str(MODEL)]) == 0
    assert main(["--out", str(tmp_path), "--model-if-slow", "another"]) == 0
    assert asked == [(7.0, 4, ModelChoice(MODEL)), (4.0, None, ModelChoice(BUNDLED_MODEL, Path("another")))]
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize(("prefill_s", "is_slow"), [(0.9 * SLOW_PREFILL_S, False), (1.1 * SLOW_PREFILL_S, True)])
def test_the_trace_is_run_on_the_other_model_where_a_prefill_of_the_bundled_one_takes_long(
    prefill_s: float, is_slow: bool, tmp_path: Path
) -> None:
    cost = proportional_cost(prefill_s / PROBE_TOKENS, 0.001)
    write_profile(tmp_path / "profiles" / "cost.json", Profile(cost, {"device": "x"}))
    other = Path("another")
    assert ModelChoice(MODEL, other).chosen(tmp_path) == (other if is_slow else MODEL)
    assert ModelChoice(MODEL).chosen(tmp_path) == MODEL
    assert ModelChoice(MODEL, other).chosen(tmp_path / "where no cost is kept") == MODEL


def test_one_run_of_each_is_refused_because_it_has_no_spread(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--repeats", "1"]) == 2
    assert "one run has no spread" in capsys.readouterr().err


@pytest.mark.parametrize("pair", ALL_PAIRS)
def test_the_servers_differ_in_their_policies_alone(pair: PolicyPair) -> None:
    before, after = (server_flags(one, MODEL, Path("state")) for one in (ALL_PAIRS[0], pair))
    differing = [flag for flag, one, other in zip(before, before[1:], after[1:], strict=False) if one != other]
    assert set(differing) <= {"--policy", "--kv-policy"}
    assert after[2:6] == ["--policy", str(pair.policy), "--kv-policy", pair.kv_policy]


@pytest.mark.parametrize("best", FCFS)
def test_the_best_form_of_fcfs_is_the_first_row_and_reservation_the_second_or_the_first_itself(
    best: PolicyPair,
) -> None:
    assert shown_forms(best) == (best, AS_VLLM if best == RESERVING else RESERVING)
    first, second, *others = shown_systems(*shown_forms(best))
    assert (first.name, first.label, first.pair) == ("fcfs", f"FCFS ({best.kv_policy})", best)
    assert second.label == ("FCFS (recompute)" if best == RESERVING else "FCFS, reserving")
    assert any("as Orca did it" in system.text for system in (first, second))
    assert [(system.name, system.pair) for system in others] == [("paper", PAPER), ("fastserve", OURS)]


@pytest.mark.parametrize(("best", "other"), list(permutations(FCFS, 2)))
def test_no_system_is_shown_twice(best: PolicyPair, other: PolicyPair) -> None:
    shown = shown_systems(best, other)
    assert [system.pair for system in shown] == [best, other, PAPER, OURS]
    assert len({system.label for system in shown}) == len(shown)
    names = {system.name for system in shown}
    assert len(names) == len(shown)
    assert names <= SHOWN_NAMES == {"fcfs", "reservation", "recompute", "proactive", "paper", "fastserve"}


async def test_a_form_that_the_first_pass_misjudged_is_not_called_the_best(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    means_s = {
        "fcfs+recompute": (2.0, 2.0, 2.0),
        "fcfs+proactive": (1.0, 1.9, 1.9),
        "fcfs+defer": (1.5, 1.5, 1.5),
    }
    ran = []

    async def run_trace(_server: str, _trace: object, _stage: Stage, pair: PolicyPair, number: int) -> Result:
        ran.append((pair.name, number))
        return {"jct_s": {"mean": means_s.get(pair.name, (0.5,) * 3)[number]}}

    monkeypatch.setattr("services.cli.bench.demo.run_trace", run_trace)
    stage = Stage(Console(file=io.StringIO()), tmp_path, time.monotonic())
    _, shown = await run_passes(stage, dict.fromkeys(ALL_PAIRS, ""), (), 3)
    assert [system.label for system in shown[:2]] == ["FCFS (defer)", "FCFS (proactive)"]
    assert [number for name, number in ran if name == "fcfs+recompute"] == [0], "not shown, so run once"
