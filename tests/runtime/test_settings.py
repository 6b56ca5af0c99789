"""A setting comes from the first source that has it, and the error of a bad one names its source."""

from enum import Enum
from pathlib import Path
from typing import Literal

import pytest
from pydantic import Field, model_validator

from services.domain.errors import InvalidFieldError
from services.runtime.settings import Address, HostPort, Settings, bare_host, join_address, load, split_address


class ChosenDevice(Enum):
    CPU = "cpu"
    CUDA = "cuda"


class SettingsOfEveryKind(Settings):
    """An example."""

    listen: Address = Field("127.0.0.1:0", description="address to serve on")
    max_batch: int = Field(16, ge=1, le=4096, description="most jobs of an iteration")
    starvation_limit: float | None = Field(10.0, gt=0, description="seconds until a waiting job is promoted")
    charge: Literal["wall", "marginal"] = Field("wall", description="what a job pays, 100 % of it")
    device: ChosenDevice = Field(ChosenDevice.CPU, description="where")
    model: Path | None = Field(None, description="folder")
    trace: bool = Field(False, description="a switch")
    low: int = 0
    high: int = 10

    @model_validator(mode="after")
    def _ordered(self) -> "SettingsOfEveryKind":
        if self.low > self.high:
            raise ValueError("low must not be above high")
        return self


def example(
    argv: list[str], environ: dict[str, str] | None = None, config_file: Path | None = None
) -> SettingsOfEveryKind:
    return load(SettingsOfEveryKind, "scheduler", argv, environ or {}, config_file)


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "fastserve.toml"
    path.write_text('[scheduler]\nmax-batch = 8\nstarvation_limit = "off"\n[worker]\nmax_batch = 99\n')
    return path


def test_without_any_word_defaults_hold() -> None:
    settings = example([])
    assert (settings.max_batch, settings.starvation_limit, settings.device) == (16, 10.0, ChosenDevice.CPU)


def test_a_flag_beats_the_environment_and_that_the_file_and_that_the_default(config_file: Path) -> None:
    environ = {"FASTSERVE_MAX_BATCH": "4"}
    assert example(["--max-batch", "2"], environ, config_file).max_batch == 2
    assert example([], environ, config_file).max_batch == 4
    assert example([], {}, config_file).max_batch == 8
    assert example([]).max_batch == 16


def test_the_environment_of_one_service_beats_that_of_all() -> None:
    environ = {"FASTSERVE_MAX_BATCH": "4", "FASTSERVE_SCHEDULER_MAX_BATCH": "5", "FASTSERVE_WORKER_MAX_BATCH": "6"}
    assert example([], environ).max_batch == 5


def test_the_file_is_named_by_a_flag_or_the_environment(config_file: Path, tmp_path: Path) -> None:
    assert example(["--config", str(config_file)]).max_batch == 8
    assert example([], {"FASTSERVE_CONFIG": str(config_file)}).max_batch == 8
    other = tmp_path / "other.toml"
    other.write_text("[scheduler]\nmax_batch = 3\n")
    assert example(["--config", str(other)], {"FASTSERVE_CONFIG": str(config_file)}).max_batch == 3


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[schedular]\nmax-batch = 8\n", "schedular is not a table of settings; the tables are autoscale, gateway, "),
        ("max-batch = 8\n", "max-batch is not a table of settings; the tables are autoscale, gateway, "),
        ("scheduler = 8\n", "scheduler must be a table"),
    ],
)
def test_what_no_command_reads_in_a_file_is_refused_by_name(text: str, told: str, tmp_path: Path) -> None:
    path = tmp_path / "fastserve.toml"
    path.write_text(text)
    with pytest.raises(InvalidFieldError, match=told):
        example([], {}, path)


def test_off_is_none_where_none_is_allowed(config_file: Path) -> None:
    assert example(["--starvation-limit", "off"]).starvation_limit is None
    assert example([], {}, config_file).starvation_limit is None
    with pytest.raises(InvalidFieldError, match="--max-batch"):
        example(["--max-batch", "off"])


def test_words_paths_and_switches_are_read() -> None:
    settings = example(["--charge", "marginal", "--device", "cuda", "--model", "/m", "--trace"])
    assert (settings.charge, settings.device, settings.model) == ("marginal", ChosenDevice.CUDA, Path("/m"))
    assert settings.trace
    assert not example(["--no-trace"], {"FASTSERVE_TRACE": "true"}).trace


@pytest.mark.parametrize(
    ("argv", "place", "limit"),
    [
        (["--max-batch", "0"], "--max-batch", "greater than or equal to 1, got '0'"),
        (["--max-batch", "many"], "--max-batch", "valid integer"),
        (["--listen", "localhost"], "--listen", "HOST:PORT"),
        (["--listen", "localhost:70000"], "--listen", "65535"),
        (["--charge", "free"], "--charge", "'wall' or 'marginal'"),
        (["--starvation-limit", "inf"], "--starvation-limit", "finite"),
        (["--nonsense"], "command line", "unrecognized arguments: --nonsense"),
        (["--max-b", "3"], "command line", "unrecognized arguments"),
        (["--max-batch"], "command line", "--max-batch"),
        (["--low", "11"], "settings", "low must not be above high"),
        (["--config", "/nowhere/x.toml"], "--config", "can't read /nowhere/x.toml"),
    ],
)
def test_a_bad_flag_is_told_with_its_limit_in_one_line(argv: list[str], place: str, limit: str) -> None:
    with pytest.raises(InvalidFieldError) as caught:
        example(argv)
    assert caught.value.field == place
    assert limit in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_bad_word_of_the_environment_or_the_file_is_told_by_its_place(tmp_path: Path) -> None:
    with pytest.raises(InvalidFieldError) as caught:
        example([], {"FASTSERVE_MAX_BATCH": "x"})
    assert caught.value.field == "FASTSERVE_MAX_BATCH"
    path = tmp_path / "bad.toml"
    path.write_text("[scheduler]\nmax-batch = 0\n")
    with pytest.raises(InvalidFieldError, match=r"bad\.toml: \[scheduler\] max-batch: .*greater than or equal to 1"):
        example([], {}, path)
    path.write_text("[scheduler]\nmax_bach = 1\n")
    with pytest.raises(InvalidFieldError, match=r"\[scheduler\] max_bach: there is no such setting"):
        example([], {}, path)
    path.write_text("scheduler = 1\n")
    with pytest.raises(InvalidFieldError, match="must be a table"):
        example([], {}, path)
    path.write_text("[scheduler\n")
    with pytest.raises(InvalidFieldError, match="--config"):
        example([], {}, path)


def test_help_names_every_flag_with_its_default(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        example(["--help"])
    assert caught.value.code == 0
    text = capsys.readouterr().out
    for word in (
        "--max-batch",
        "default: 16",
        "{wall,marginal}",
        "--no-trace",
        "100 % of it",
        "--config",
        "--ready-file",
    ):
        assert word in text


def test_addresses_have_two_parts() -> None:
    assert split_address("[::1]:50051") == HostPort("[::1]", 50051)
    with pytest.raises(ValueError, match="HOST:PORT"):
        split_address(":1")
    with pytest.raises(ValueError, match=r"IPv6 host in brackets, \[HOST\]:PORT"):
        split_address("::1:50051")


@pytest.mark.parametrize(
    ("host", "address"),
    [("::1", "[::1]:7"), ("[::1]", "[::1]:7"), ("::", "[::]:7"), ("127.0.0.1", "127.0.0.1:7"), ("here", "here:7")],
)
def test_a_host_and_a_port_make_an_address(host: str, address: str) -> None:
    assert join_address(host, 7) == address
    assert bare_host(split_address(address).host) == bare_host(host)
