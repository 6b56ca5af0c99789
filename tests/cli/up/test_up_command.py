"""Flags of `fastserve up`: which service gets which, and what is refused before anything starts."""

import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from services.cli.__main__ import main
from services.cli.up.service_process import ServiceAddresses
from services.cli.up.up_command import STOP_MARGIN_S, check_public_ports, flags_of_services, service_commands
from services.cli.up.up_log import UpLog
from services.cli.up.up_settings import SERVICES, UpOnlySettings, UpSettings
from services.cli.up.worker_groups import worker_flags
from services.domain.errors import AddressInUseError, InvalidFieldError
from services.loadgen.server_process import last_line, running_server
from services.runtime.model_files import BUNDLED_MODEL, BUNDLED_MODEL_NAME
from services.runtime.settings import TABLES, load, parse_flags
from services.worker.parallel.layout import Layout
from services.worker.settings import WorkerSettings
from tests.cli.commands import PYTHON_FASTSERVE
from tests.e2e.cluster import free_port

CONTRACT = [
    "model",
    "served_model_name",
    "policy",
    "kv_policy",
    "max_batch",
    "max_model_len",
    "max_batch_tokens",
    "prefill_chunk",
    "kv_device_tokens",
    "kv_host_tokens",
    "block_size",
    "device",
    "dtype",
    "threads",
    "max_queued_jobs",
    "host",
    "grpc_port",
    "http_port",
    "metrics_port",
    "state_dir",
    "quantum_ratio",
    "starvation_limit",
    "charge",
    "kv_idle_slots",
    "kv_burst_levels",
    "plans_in_flight",
    "groups",
    "tp",
    "pp",
]


def flags(*argv: str, environ: Mapping[str, str] | None = None, config: Path | None = None) -> dict[str, list[str]]:
    environ = environ or {}
    settings = load(UpSettings, "up", argv, environ, config)
    return flags_of_services(settings, environ, config)


def test_every_flag_of_the_contract_exists() -> None:
    assert set(CONTRACT) <= set(UpSettings.model_fields)


def test_every_flag_is_ups_own_or_belongs_to_a_service() -> None:
    for name in CONTRACT:
        owners = [service for service, settings in SERVICES.items() if name in settings.model_fields]
        assert owners or name in UpOnlySettings.model_fields, name


def test_without_flags_every_service_that_takes_a_model_gets_the_bundled_one_and_the_kv_manager_its_name() -> None:
    model = ["--model", str(BUNDLED_MODEL)]
    name = ["--served-model-name", BUNDLED_MODEL_NAME]
    assert flags() == {"gateway": model, "scheduler": model, "kvmanager": name, "worker": model}


def test_a_flag_goes_to_every_service_that_owns_it_and_to_no_other() -> None:
    given = flags(
        "--model", "m", "--policy", "fcfs", "--kv-policy", "defer", "--max-batch", "8", "--kv-device-tokens", "512",
        "--prefill-chunk", "off", "--starvation-limit", "off", "--metrics-port", "9000", "--grpc-port", "0",
        "--threads", "1", "--kv-idle-slots", "2", "--block-size", "32", "--served-model-name", "n",
    )  # fmt: skip

    def pairs(service: str) -> dict[str, str]:
        return dict(zip(given[service][::2], given[service][1::2], strict=True))

    assert pairs("gateway") == {
        "--model": "m",
        "--grpc-port": "0",
        "--metrics-port": "9000",
        "--served-model-name": "n",
    }
    assert pairs("scheduler") == {
        "--model": "m",
        "--policy": "fcfs",
        "--max-batch": "8",
        "--prefill-chunk": "off",
        "--starvation-limit": "off",
        "--block-size": "32",
        "--served-model-name": "n",
    }
    assert pairs("kvmanager") == {"--kv-policy": "defer", "--kv-idle-slots": "2", "--served-model-name": "n"}
    assert pairs("worker") == {
        "--model": "m",
        "--max-batch": "8",
        "--kv-device-tokens": "512",
        "--threads": "1",
        "--block-size": "32",
        "--served-model-name": "n",
    }


def test_the_kv_manager_is_told_the_name_under_which_clients_know_the_model(tmp_path: Path) -> None:
    folder = str(tmp_path / "some-model")
    assert flags("--model", folder)["kvmanager"] == ["--served-model-name", "some-model"]
    assert flags("--model", str(tmp_path / ("m" * 200)))["kvmanager"] == ["--served-model-name", "m" * 128]
    assert flags("--served-model-name", "n")["kvmanager"] == ["--served-model-name", "n"]
    environ = {"FASTSERVE_GATEWAY_SERVED_MODEL_NAME": "known"}
    assert flags(environ=environ)["kvmanager"] == ["--served-model-name", "known"]
    assert flags(environ={**environ, "FASTSERVE_KVMANAGER_SERVED_MODEL_NAME": "own"})["kvmanager"] == []
    config = tmp_path / "fastserve.toml"
    for key in ("served-model-name", "served_model_name"):
        config.write_text(f'[kvmanager]\n{key} = "own"\n')
        assert flags(config=config)["kvmanager"] == ["--config", str(config)]


def test_a_service_is_given_the_time_that_its_drain_takes_wherever_its_limit_is_written(tmp_path: Path) -> None:
    config = tmp_path / "fastserve.toml"
    config.write_text("[gateway]\ndrain_limit = 120\n[scheduler]\ndrain-limit = 70\n")
    environ = {"FASTSERVE_GATEWAY_DRAIN_LIMIT": "110"}

    def limits_s(given: dict[str, list[str]], environ: Mapping[str, str]) -> tuple[float, ...]:
        by_name = {command.name: command.stop_limit_s for command in service_commands(given, environ)}
        return tuple(by_name[name] - STOP_MARGIN_S for name in ("gateway", "scheduler", "worker"))

    assert limits_s(flags(), {}) == (30.0, 5.0, 20.0)
    assert limits_s(flags("--drain-limit", "90"), {}) == (90.0, 90.0, 90.0)
    assert limits_s(flags(environ=environ), environ) == (110.0, 5.0, 20.0)
    assert limits_s(flags(config=config), {}) == (120.0, 70.0, 20.0)
    assert limits_s(flags(config=config, environ=environ), environ) == (110.0, 70.0, 20.0)


def test_what_is_wrong_in_the_table_of_a_service_is_told_before_anything_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "fastserve.toml"
    config.write_text("[scheduler]\nmax-batch = 0\n")
    assert main(["up", "--config", str(config)]) == 1
    assert capsys.readouterr().err.startswith(f"fastserve up: {config}: [scheduler] max-batch: ")


def test_a_file_may_have_a_table_for_every_service() -> None:
    assert set(SERVICES) < TABLES


def test_the_file_is_passed_on_and_its_up_table_is_read(tmp_path: Path) -> None:
    config = tmp_path / "fastserve.toml"
    config.write_text(
        '[up]\npolicy = "srpt"\n[worker]\nmodel = "own"\nkv-device-tokens = 64\n[scheduler]\nmax-batch = 4\n'
    )
    given = flags(config=config)
    assert given["scheduler"] == ["--policy", "srpt", "--config", str(config), "--model", str(BUNDLED_MODEL)]
    assert given["worker"] == ["--config", str(config)]


def test_a_model_named_by_the_environment_is_not_overridden() -> None:
    assert flags(environ={"FASTSERVE_MODEL": "m"})["gateway"] == ["--model", "m"]
    assert flags(environ={"FASTSERVE_WORKER_MODEL": "m"})["worker"] == []


def test_services_of_one_line_take_the_flags_that_up_gives_them() -> None:
    known = {name: ServiceAddresses("127.0.0.1:5", "127.0.0.1:6") for name in SERVICES}
    for command in service_commands(flags("--max-batch", "8", "--kv-policy", "defer"), {}, front=Path("none")):
        argv = command.build(known)
        assert argv[1:3] == ["-m", f"services.{command.name}"]
        given = [*argv[3:], "--ready-file", "f", "--die-with-parent", "1"]
        load(SERVICES[command.name], command.name, given, {})


def test_each_group_has_a_worker_process_with_its_share_of_the_cores_and_the_default_pools() -> None:
    known = {name: ServiceAddresses("127.0.0.1:5", "127.0.0.1:6") for name in SERVICES}
    commands = service_commands(flags("--groups", "2", "--threads", "5"), {}, front=Path("none"))
    assert [command.name for command in commands] == ["kvmanager", "scheduler", "worker-0", "worker-1", "gateway"]
    argvs = {command.name: command.build(known) for command in commands}
    assert argvs["scheduler"][argvs["scheduler"].index("--groups") + 1] == "2"
    assert "--groups" not in argvs["kvmanager"]
    for group in (0, 1):
        given = load(WorkerSettings, "worker", argvs[f"worker-{group}"][3:], {})
        assert (given.group, given.workers_here, given.threads) == (group, 2, 2)


def test_each_rank_is_a_process_that_knows_its_leader_and_its_share_of_the_cores() -> None:
    known = {name: ServiceAddresses("127.0.0.1:5", "127.0.0.1:6") for name in SERVICES}
    given = flags("--tp", "2", "--pp", "2", "--groups", "2", "--threads", "17")
    commands = service_commands(given, {}, front=Path("none"))
    workers = [command for command in commands if command.name.startswith("worker")]
    assert [command.name for command in workers[:4]] == ["worker-0", *(f"worker-0-rank-{rank}" for rank in (1, 2, 3))]
    ranks = [load(WorkerSettings, "worker", command.build(known)[3:], {}) for command in workers]
    assert [(one.group, one.rank, one.layout) for one in ranks] == [
        (group, rank, Layout(2, 2)) for group in (0, 1) for rank in range(4)
    ]
    assert {(one.workers_here, one.threads) for one in ranks} == {(8, 2)}
    leaders = [one.leader for one in ranks]
    assert leaders == [leaders[0]] * 4 + [leaders[4]] * 4
    assert leaders[0] != leaders[4]


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (("--tp", "3"), r"--tp: .* attention heads .*; the nearest layout that can be is --tp 2 --pp 1"),
        (("--pp", "99"), "--pp: 99 stages need a layer each; .* the nearest layout that can be is --tp 1 --pp 5"),
        (
            ("--pp", "2", "--policy", "mlfq-kill"),
            "--policy: mlfq-kill .*the nearest layout that can be is --tp 1 --pp 1",
        ),
    ],
)
def test_a_layout_that_can_not_be_is_refused_with_the_nearest_one_that_can(argv: tuple[str, ...], reason: str) -> None:
    with pytest.raises(InvalidFieldError, match=reason):
        worker_flags(flags(*argv), {})


def test_a_group_has_a_core_at_least() -> None:
    given = flags(environ={"FASTSERVE_SCHEDULER_GROUPS": "9"})
    shares = worker_flags(given, {"FASTSERVE_SCHEDULER_GROUPS": "9", "FASTSERVE_WORKER_THREADS": "2"})
    assert len(shares) == 9
    assert {tuple(share[2:]) for share in shares.values()} == {("--workers-here", "9", "--threads", "1")}


def test_a_restarted_service_gets_the_ports_of_its_first_process() -> None:
    known = {name: ServiceAddresses(f"127.0.0.1:{port}", "127.0.0.1:9") for port, name in enumerate(SERVICES, start=50)}
    by_name = {command.name: command for command in service_commands(flags("--grpc-port", "0"), {})}
    assert by_name["gateway"].build(known)[-4:] == ["--grpc-port", "50", "--metrics-port", "9"]
    assert "127.0.0.1:52" in by_name["kvmanager"].build(known)
    for name in ("scheduler", "kvmanager", "worker"):
        argv = by_name[name].build(known)
        assert argv[argv.index("--metrics-port") + 1] == "9"


def test_the_rest_front_is_told_its_port_and_its_gateway_and_comes_last(tmp_path: Path) -> None:
    program = tmp_path / "fastserve-rest"
    program.touch()
    known = {"gateway": ServiceAddresses("127.0.0.1:5", "127.0.0.1:6")}
    *_, rest = service_commands(flags("--drain-limit", "7"), {}, 8080, program)
    assert (rest.name, rest.after, rest.stop_limit_s) == ("rest", ("gateway",), 7.0 + STOP_MARGIN_S)
    gateway = ["--gateway", "127.0.0.1:5", "--drain-limit", "7s", "--gateway-metrics", "127.0.0.1:6"]
    assert rest.build(known) == [str(program), "--listen", "127.0.0.1:8080", *gateway]
    known["rest"] = ServiceAddresses("", None, "127.0.0.1:9")
    assert rest.build(known)[1:3] == ["--listen", "127.0.0.1:9"]


def test_one_log_format_is_for_all_services_and_the_rest_front(tmp_path: Path) -> None:
    program = tmp_path / "fastserve-rest"
    program.touch()
    given = flags("--log-format", "json")
    for service in SERVICES:
        at = given[service].index("--log-format")
        assert given[service][at + 1] == "json"
    *_, rest = service_commands(given, {}, 8080, program, UpLog("json"))
    command = rest.build({"gateway": ServiceAddresses("127.0.0.1:5", None)})
    assert command[-2:] == ["--log-format", "json"]


def test_without_the_rest_front_one_line_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands = service_commands(flags(), {}, 8080, tmp_path / "none")
    assert "rest" not in {command.name for command in commands}
    told = capsys.readouterr().err
    assert (told.count("\n"), "no REST front" in told, "make install" in told) == (1, True, True)


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (("--tp", "0"), "--tp: "),
        (("--pp", "99"), "--pp: 99 stages need a layer each"),
        (("--rank", "1"), "command line: unrecognized arguments: --rank 1"),
        (("--groups", "0"), "--groups: "),
        (("--group", "1"), "command line: unrecognized arguments: --group 1"),
        (("--max-batch", "0"), "--max-batch: "),
        (("--policy", "nope"), "--policy: "),
        (("--kv-policy", "nope"), "--kv-policy: "),
        (("--no-such-flag",), "command line: "),
        (("--config", "no-such-file.toml"), "--config: can't read no-such-file.toml"),
        (("--grpc-port", "70000"), "--grpc-port: "),
        (("--http-port", "70000"), "--http-port: "),
    ],
)
def test_a_bad_flag_ends_with_1_and_one_line(
    argv: tuple[str, ...], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["up", *argv]) == 1
    told = capsys.readouterr()
    assert (told.out, told.err.count("\n")) == ("", 1)
    assert told.err.startswith(f"fastserve up: {reason}")


def test_a_public_port_that_is_taken_is_refused_by_its_flag() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        reason = f"--http-port: can't listen on 127.0.0.1:{port}: the port is in use"
        with pytest.raises(AddressInUseError, match=reason):
            check_public_ports("127.0.0.1", {"--grpc-port": free_port(), "--http-port": port})


def test_one_port_for_two_servers_is_refused_by_the_flag_of_the_second() -> None:
    port = free_port()
    with pytest.raises(AddressInUseError, match=f"--metrics-port: can't listen on 127.0.0.1:{port}"):
        check_public_ports("127.0.0.1", {"--grpc-port": port, "--metrics-port": port})


def test_ports_that_are_free_stay_free_and_any_number_of_servers_may_have_any_free_port() -> None:
    port = free_port()
    check_public_ports("127.0.0.1", {"--grpc-port": port, "--metrics-port": 0, "--http-port": 0})
    with socket.socket() as later:
        later.bind(("127.0.0.1", port))
        later.listen()


def test_a_missing_model_folder_ends_with_1_and_the_reason_in_one_line(tmp_path: Path) -> None:
    ended = subprocess.run(
        [*PYTHON_FASTSERVE, "up", "--grpc-port", "0", "--http-port", "0", "--model", str(tmp_path / "none")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    own_lines = [line for line in ended.stderr.splitlines() if not line.startswith("[")]
    assert (ended.returncode, ended.stdout) == (1, "")
    assert len(own_lines) == 1
    assert own_lines[0].endswith(f"{tmp_path / 'none'} is not a folder")


async def test_a_server_that_cannot_come_up_is_told_with_its_last_line(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="--max-batch: "):
        async with running_server(["--max-batch", "0"], tmp_path / "log"):
            pass
    (tmp_path / "empty").touch()
    assert last_line(tmp_path / "empty") == "the server ended without writing a log"


def test_help_names_the_flags_of_the_services(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_flags(UpSettings, ["--help"], "fastserve up")
    text = capsys.readouterr().out
    assert all(f"--{name.replace('_', '-')}" in text for name in CONTRACT)
