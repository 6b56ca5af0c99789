"""Real services, recorded while jobs take the device from each other, and cancelled and crashed among it: what they
decided is decided again, command by command, by the machines alone. And what they exported meanwhile as metrics is what
the machines counted, and what the clients got.
"""

import asyncio
import gzip
import json
import re
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from fastserve.v1 import admin_pb2, inference_pb2, inference_pb2_grpc
from services.cli.simulate.replay_command import replay_file
from services.kvmanager.enst_errors import EnstErrors
from services.kvmanager.kv_manager_recording import KV_MANAGER_FORMAT
from services.kvmanager.machine.kv_manager import KvManager
from services.runtime.recording.lines import Ending
from services.runtime.recording.reader import Recording
from services.scheduler.machine.scheduler import Scheduler
from services.scheduler.machine.scheduler_counters import SchedulerCounters
from services.scheduler.scheduler_recording import SCHEDULER_FORMAT
from services.worker.kv.pool_sizes import kv_bytes
from tests.builders.metrics_page import described_metrics
from tests.builders.repository_paths import BUNDLED
from tests.builders.waits import wait_until
from tests.e2e.cluster import Cluster
from tests.e2e.jobs import Given, make_jobs, request_of, run_together
from tests.e2e.scraping import Scrape, scrape

VOCABULARY = 2048
POOL_TOKENS = 512
"""Two or three long jobs fill it; sixteen run at a time."""
LEAST_PLANS = 100
PROMPT_WORDS = "the heron nested above the mill"
AGAIN_JOBS = 20
BLOCK_TOKENS = 16
SECRET_ID = "customer-4711"
SECRET_CLIENT = "alice"


@dataclass(frozen=True)
class Recorded:
    """A run that ended, and its files."""

    given: list[Given]
    scheduler: Path
    kvmanager: Path
    killed_kvmanager: Path
    counters: admin_pb2.Counters
    before: Scrape
    """The metrics of all services when the second KV manager had no job yet, nor had had one."""
    after: Scrape
    """Those at the end, idle again."""

    @property
    def again(self) -> list[Given]:
        """What was asked for between the two scrapes."""
        return self.given[-AGAIN_JOBS:]


async def say_something(address: str) -> list[int]:
    """A request with a text prompt and a recognisable id; then one that is cancelled after its first token."""
    sampling = inference_pb2.SamplingParams(max_tokens=24, ignore_eos=True, temperature=0.0)
    token_ids: list[int] = []
    async with grpc.aio.insecure_channel(address) as channel:
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        request = inference_pb2.GenerateRequest(request_id=SECRET_ID, text=PROMPT_WORDS, sampling=sampling)
        request.client = SECRET_CLIENT
        async for message in stub.Generate(request):
            token_ids.extend(message.token_ids)
        left = stub.Generate(request_of(make_jobs(1, VOCABULARY)[0], logprobs=False))
        async for _ in left:
            left.cancel()
            break
    return token_ids


def heard_plans(recording: Path) -> list[int]:
    """The numbers of the plans of which the recorded KV manager heard."""
    return [
        event[2][1]
        for turn in lines_of(recording)[1:]
        for event in turn["events"]
        if event[0] == "FromScheduler" and event[2][0] == "Planned"
    ]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    folder = tmp_path_factory.mktemp("cluster")
    records = folder / "records"
    flags = ("--record", str(records))
    worker_flags = (
        "--dtype", "float32", "--threads", "1", "--kv-device-tokens", str(POOL_TOKENS), "--kv-host-tokens", "16384"
    )  # fmt: skip
    cluster = Cluster(BUNDLED, folder, worker_flags)
    try:
        promoting = (*flags, "--starvation-limit", "0.1")
        cluster.set_policies("skip-join-mlfq", "proactive", scheduler_flags=promoting, kv_flags=flags)
        cluster.start_worker()
        cluster.start_gateway()
        cluster.wait_ready()
        address = cluster.gateway_address
        given = asyncio.run(run_together(address, make_jobs(40, VOCABULARY)))
        said = asyncio.run(say_something(address))
        killed = records / "kvmanager-001.jsonl.gz"
        wait_until(lambda: len(heard_plans(killed)) > LEAST_PLANS, "the KV manager's recording on the disk")
        # The KV manager is killed, and everything starts over with a new epoch of the worker.
        cluster.processes["kvmanager"].stop(signal.SIGKILL)
        wait_until(lambda: not cluster.status().groups[0].ready, "KV manager missed")
        cluster.restart("kvmanager").wait_ready()
        cluster.wait_ready()
        before = scrape(cluster)
        again = asyncio.run(run_together(address, make_jobs(AGAIN_JOBS, VOCABULARY)))
        wait_until(cluster.is_idle, "every block free")
        after, counters = scrape(cluster), cluster.status().counters
        for service in ("gateway", "scheduler", "kvmanager"):
            assert cluster.processes[service].stop() == 0, cluster.processes[service].log()
    finally:
        cluster.stop()
    assert len(said) == 24
    return Recorded(
        given=[*given, *again],
        scheduler=records / "scheduler-001.jsonl.gz",
        kvmanager=records / "kvmanager-002.jsonl.gz",
        killed_kvmanager=killed,
        counters=counters,
        before=before,
        after=after,
    )


def test_the_recorded_run_preempted_and_swapped(recorded: Recorded) -> None:
    assert sum(given.preemptions for given in recorded.given) > 10
    assert recorded.counters.offloaded_bytes > 0
    assert recorded.counters.uploaded_bytes > 0


@pytest.mark.parametrize(
    ("service", "ending"),
    [("scheduler", Ending.CLOSED), ("kvmanager", Ending.CLOSED), ("killed_kvmanager", Ending.CUT_OFF)],
)
def test_a_replay_gives_exactly_the_commands_of_the_live_run(recorded: Recorded, service: str, ending: Ending) -> None:
    recording, outcome = replay_file(getattr(recorded, service))
    assert outcome.difference is None
    assert outcome.last_fault is None
    assert recording.ending is ending
    assert outcome.turns > 100
    assert outcome.commands > 50


def test_the_scheduler_and_the_kv_manager_recorded_the_same_conversation(recorded: Recorded) -> None:
    """What one sent is what the other heard, up to the second that the killed one lost. Nobody was refused, and so
    they met the jobs in the same order and name them alike.
    """
    heard = heard_plans(recorded.killed_kvmanager)
    sent = [
        command[2][1]
        for turn in lines_of(recorded.scheduler)[1:-1]
        for command in turn["commands"]
        if command[0] == "ToKv" and command[2][0] == "Planned"
    ]
    assert len(heard) > LEAST_PLANS
    assert heard == sent[: len(heard)]


def test_no_token_no_text_and_no_name_of_a_client_is_recorded(recorded: Recorded) -> None:
    for path in (recorded.scheduler, recorded.kvmanager, recorded.killed_kvmanager):
        text = "\n".join(json.dumps(line) for line in lines_of(path))
        assert SECRET_ID not in text
        assert SECRET_CLIENT not in text
        assert not any(word in text for word in PROMPT_WORDS.split() if len(word) > 3)
        sequences = [job.prompt for job in make_jobs(40, VOCABULARY)] + [given.token_ids for given in recorded.given]
        assert not any(json.dumps(ids[:4])[1:-1] in text for ids in sequences)
        names = {name for name in re.findall(r'"([^"]*)"', text) if re.fullmatch(r"[a-z]+\d+|.*/.*", name)}
        assert all(re.fullmatch(r"j\d+", name) for name in names), names


def test_the_token_ids_that_were_sampled_are_left_out(recorded: Recorded) -> None:
    sampled = [
        token
        for turn in lines_of(recorded.scheduler)[1:-1]
        for event in turn["events"]
        if event[0] == "IterationResult"
        for token in event[3]
    ]
    assert len(sampled) >= sum(len(given.token_ids) for given in recorded.given)
    assert {token_id for _, token_id, _ in sampled} == {0}
    emitted = [
        command[4]
        for turn in lines_of(recorded.scheduler)[1:-1]
        for command in turn["commands"]
        if command[0] == "Emit"
    ]
    assert len(emitted) >= sum(len(given.token_ids) for given in recorded.given)
    assert set(emitted) == {0}


# --- metrics ---------------------------------------------------------------------------------------------------------


def counted_by_the_machine(path: Path) -> SchedulerCounters:
    """The counters of a machine that took all recorded turns."""
    recording = Recording(path, (SCHEDULER_FORMAT,))
    machine = Scheduler(recording.head.settings, strict=recording.head.strict)
    for turn in recording:
        machine.handle(turn.events, turn.now_s)
    return machine.counters


def test_the_scheduler_exports_what_its_machine_counted(recorded: Recorded) -> None:
    after, counted = recorded.after, counted_by_the_machine(recorded.scheduler)
    assert counted.promotions > 0
    assert counted.demotions > 0
    assert after.sum("num_preemptions_total") == counted.preemptions
    assert after.sum("num_promotions_total") == counted.promotions
    assert after.sum("num_demotions_total") == counted.demotions
    assert after.sum("num_iterations_total") == counted.iterations
    assert after.sum("recomputed_tokens_total") == counted.recomputed_tokens
    assert after.sum("iteration_tokens_count") == counted.iterations
    assert after.sum("iteration_tokens_sum") == counted.iteration_token_sum


def test_the_sums_over_all_services_are_what_the_clients_got(recorded: Recorded) -> None:
    jobs = make_jobs(AGAIN_JOBS, VOCABULARY)

    def more(name: str, **labels: str) -> float:
        return recorded.after.sum(name, **labels) - recorded.before.sum(name, **labels)

    assert more("prompt_tokens_total") == sum(len(job.prompt) for job in jobs)
    assert more("generation_tokens_total") == sum(job.output_tokens for job in jobs)
    assert more("request_success_total", finished_reason="length") == more("request_success_total") == AGAIN_JOBS
    assert more("num_preemptions_total") == sum(given.preemptions for given in recorded.again)
    assert more("request_num_preemptions_sum") == more("num_preemptions_total")
    assert recorded.after.sum("jobs") == recorded.after.sum("num_requests_waiting") == 0


def test_bytes_are_those_of_the_blocks_that_the_kv_manager_had_copied(recorded: Recorded) -> None:
    config = json.loads((BUNDLED / "config.json").read_text())
    position = kv_bytes(config["num_hidden_layers"], config["num_key_value_heads"], config["head_dim"], value_bytes=4)
    copied = {"Offload": 0, "Upload": 0}
    for turn in Recording(recorded.kvmanager, (KV_MANAGER_FORMAT,)):
        for command in turn.commands:
            kind = type(getattr(command, "message", None)).__name__
            if kind in copied:
                copied[kind] += len(command.message.moves) * BLOCK_TOKENS * position
    assert copied["Offload"] > 0
    for name, kind in (("kv_offloaded_bytes_total", "Offload"), ("kv_uploaded_bytes_total", "Upload")):
        assert recorded.after.sum(name) - recorded.before.sum(name) == copied[kind]


def test_the_errors_of_enst_are_those_of_a_replay(recorded: Recorded) -> None:
    judged: list[float] = []
    errors = EnstErrors(0, lambda group, enst_s, waited_s: judged.append(waited_s - enst_s))
    recording = Recording(recorded.kvmanager, (KV_MANAGER_FORMAT,))
    machine = KvManager(recording.head.settings)
    for turn in recording:
        machine.handle(turn.events, turn.now_s)
        errors.after_turn(machine, turn.events, turn.now_s)
    assert len(judged) > 10
    for direction, own in (
        ("late", [one for one in judged if one > 0]),
        ("early", [one for one in judged if one <= 0]),
    ):
        if own:
            assert recorded.after.sum("enst_error_seconds_count", direction=direction) == len(own)
            sum_s = sum(abs(one) for one in own)
            assert recorded.after.sum("enst_error_seconds_sum", direction=direction) == pytest.approx(sum_s)


def test_the_worker_s_times_are_those_that_the_scheduler_was_told(recorded: Recorded) -> None:
    after, told = recorded.after, recorded.counters
    busy_s, stall_s = after.sum("worker_busy_seconds_total"), after.sum("worker_stall_seconds_total")
    wait_s = after.sum("worker_plan_wait_seconds_total")
    assert busy_s == pytest.approx(told.busy_s, rel=0.02)
    assert stall_s == pytest.approx(told.stall_s, rel=0.02, abs=0.01)
    assert wait_s == pytest.approx(told.plan_wait_s, rel=0.05, abs=0.05)
    assert after.sum("worker_plan_wait_share") == pytest.approx(wait_s / (busy_s + stall_s + wait_s))
    assert after.sum("worker_lives_total") >= 2


def test_what_is_exported_is_what_the_page_lists(recorded: Recorded) -> None:
    exported = {(sample.service, sample.family) for sample in recorded.after.samples}
    assert exported == {(row.service, row.family) for row in described_metrics() if not row.switch}
    series = [(sample.name, tuple(sorted(sample.labels.items()))) for sample in recorded.after.samples]
    assert len(series) == len(set(series))


def lines_of(path: Path) -> list[dict[str, Any]]:
    """The lines as they are, up to where the file was cut off."""
    lines: list[dict[str, Any]] = []
    with gzip.open(path) as file:
        try:
            lines.extend(json.loads(line) for line in file)
        except EOFError:
            return lines
    return lines
