"""`fastserve generate` against a gateway that speaks real gRPC."""

import io
import json
import subprocess
import sys
from pathlib import Path

import pytest

from services.cli.__main__ import COMMANDS, main
from services.loadgen.gateway_client import CALL_LIMIT_S
from services.runtime.channel import CLIENT_OPTIONS
from tests.cli.commands import PYTHON_FASTSERVE, fastserve
from tests.cli.delaying_proxy import delaying
from tests.fakes.fake_gateway_for_client import FakeGatewayForClient, serving


async def test_text_is_streamed_to_stdout_and_ends_with_a_line_break(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(FakeGatewayForClient()) as gateway:
        code = await fastserve("generate", "Hello there", "--server", gateway.address, "--max-tokens", "3")
    assert (code, capsys.readouterr().out) == (0, "w0 w1 w2 \n")


async def test_only_given_flags_are_sent_so_that_the_servers_defaults_hold() -> None:
    async with serving(FakeGatewayForClient()) as gateway:
        await fastserve("generate", "x", "--server", gateway.address)
        await fastserve(
            "generate", "x", "--server", gateway.address, "--max-tokens", "4", "--min-tokens", "2",
            "--temperature", "0.5", "--top-p", "0.75", "--top-k", "7", "--min-p", "0.25",
            "--seed", "-9", "--stop", "A", "--stop", "B", "--ignore-eos", "--logprobs", "3",
        )  # fmt: skip
    bare, full = (request.sampling for request in gateway.requests)
    assert bare.ByteSize() == 0
    assert (full.max_tokens, full.min_tokens, full.temperature, full.top_p, full.top_k) == (4, 2, 0.5, 0.75, 7)
    assert (full.min_p, full.seed, list(full.stop), full.ignore_eos, full.logprobs) == (0.25, -9, ["A", "B"], True, 3)


async def test_json_prints_one_object_a_message(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(FakeGatewayForClient()) as gateway:
        code = await fastserve("generate", "a b", "--server", gateway.address, "--max-tokens", "2", "--json")
    first, last = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    assert code == 0
    assert first == {
        "request_id": "r1",
        "index": 0,
        "first_token_number": 0,
        "token_ids": [0],
        "text": "w0 ",
        "finish_reason": None,
    }
    assert last["finish_reason"] == "length"
    assert last["usage"] == {"prompt_tokens": 2, "completion_tokens": 2, "total_tokens": 4, "preemptions": 2}


async def test_a_dash_reads_the_prompt_from_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("räksmörgås\n".encode())))
    async with serving(FakeGatewayForClient()) as gateway:
        assert await fastserve("generate", "-", "--server", gateway.address) == 0
    assert gateway.requests[0].text == "räksmörgås\n"


@pytest.mark.parametrize(
    ("argv", "reason"),
    [
        (("refuse",), "INVALID_ARGUMENT: sampling.temperature: must be at most 100"),
        (("full",), "RESOURCE_EXHAUSTED: 100 jobs are queued"),
        (("x", "--model", "other"), "NOT_FOUND: model 'other' is not served here"),
        (("x", "--max-tokens", "99999999999"), "refused: "),
        (("\udcff",), "refused: "),
    ],
)
async def test_a_refused_request_ends_with_2_and_one_line(
    argv: tuple[str, ...], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async with serving(FakeGatewayForClient()) as gateway:
        code = await fastserve("generate", *argv, "--server", gateway.address)
    told = capsys.readouterr()
    assert (code, told.out, told.err.count("\n")) == (2, "", 1)
    assert told.err.startswith(f"fastserve generate: {reason}")


def test_a_server_that_cannot_be_reached_ends_with_3_and_one_line() -> None:
    ended = subprocess.run(
        [*PYTHON_FASTSERVE, "generate", "x", "--server", "127.0.0.1:1"], capture_output=True, text=True, timeout=60
    )
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (3, "", 1)
    assert ended.stderr.startswith("fastserve generate: 127.0.0.1:1 can't be reached: ")


async def test_a_server_that_is_lost_midway_ends_with_3_after_what_came(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(FakeGatewayForClient()) as gateway:
        code = await fastserve("generate", "break", "--server", gateway.address)
    told = capsys.readouterr()
    assert (code, told.out, told.err.count("\n")) == (3, "w0 ", 1)


async def test_a_request_that_the_server_aborts_ends_with_1_after_what_came(
    capsys: pytest.CaptureFixture[str],
) -> None:
    async with serving(FakeGatewayForClient()) as gateway:
        code = await fastserve("generate", "abort", "--server", gateway.address, "--max-tokens", "2")
    told = capsys.readouterr()
    assert (code, told.out) == (1, "w0 w1 \n")
    assert told.err == "fastserve generate: the server aborted the request: the output is incomplete\n"


async def test_a_server_whose_answers_take_most_of_a_second_is_reached(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving(FakeGatewayForClient()) as gateway, delaying(gateway.address, 0.4) as far:
        code = await fastserve("generate", "x", "--server", far, "--max-tokens", "1")
    told = capsys.readouterr()
    assert (code, told.out, told.err) == (0, "w0 \n", "")


def test_a_server_that_says_nothing_is_told_as_one_that_cannot_be_reached_before_a_call_gives_up() -> None:
    assert dict(CLIENT_OPTIONS)["grpc.min_reconnect_backoff_ms"] < CALL_LIMIT_S * 1000


@pytest.mark.parametrize("where", ["command", "import"])
def test_ctrl_c_ends_a_command_without_a_word_also_while_it_is_imported(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupted = "raise KeyboardInterrupt\n"
    module = tmp_path / f"interrupted_{where}.py"
    module.write_text(interrupted if where == "import" else f"def main(argv):\n    {interrupted}")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(COMMANDS, "interrupted", (module.stem, ""))
    try:
        code = main(["interrupted"])
    except KeyboardInterrupt:
        pytest.fail("it ends the whole program")
    assert code == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    "argv", [("generate", "x", "--top-k", "many"), ("generate", "x", "--no-such-flag"), ("no-such-command",)]
)
def test_bad_arguments_end_with_2_and_one_line(argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(list(argv)) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_version_and_help_are_told_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("fastserve ")
    assert main(["--help"]) == 0
    assert "kvmanager" in capsys.readouterr().out


def test_generate_starts_without_torch_and_pydantic() -> None:
    heavy = ("torch", "pydantic", "numpy", "rich")
    program = "import sys, services.cli.client.generate_command, services.loadgen.gateway_client; "
    program += f"print([name for name in {heavy} if name in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.strip() == "[]"
