"""`fastserve trace convert`: the columns of public traces."""

import json
from pathlib import Path

import pytest

from services.domain.errors import InvalidFieldError
from services.workloads.public_traces import convert
from services.workloads.workload import read_trace
from tests.cli.commands import fastserve

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:48.0000000,10,0
"""
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45.5,GPT-4,1087,230,1317,API log
1106,ChatGPT,0,0,0,Conversation log
"""


def lengths_of(text: str) -> list[tuple[float, int, int]]:
    jobs = convert(text.splitlines(keepends=True)).jobs
    return [(job.arrival_s, job.prompt_tokens, job.output_tokens) for job in jobs]


def test_azure_times_count_from_the_first_row_and_rows_without_output_are_skipped() -> None:
    assert lengths_of(AZURE) == [(0.0, 374, 44), (pytest.approx(4.314579, abs=2e-6), 396, 109)]
    converted = convert(AZURE.splitlines())
    assert (converted.format, converted.skipped) == ("azure", 1)


def test_azure_times_with_a_zone_are_read() -> None:
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,2162,5\n"
    assert lengths_of(text + "2024-05-10 00:00:01.009930+00:00,7,9\n") == [(0.0, 2162, 5), (1.0, 7, 9)]


def test_burstgpt_rows_that_failed_are_skipped() -> None:
    converted = convert(BURSTGPT.splitlines())
    assert (converted.format, converted.skipped) == ("burstgpt", 1)
    assert lengths_of(BURSTGPT) == [(0.0, 472, 18), (40.5, 1087, 230)]


def test_columns_are_known_by_their_names_whatever_stands_between_them() -> None:
    text = (
        "Session ID,Timestamp,Elapsed time,Model,Response tokens,Request tokens,Total tokens,Log Type\n"
        "a,3,0.5,GPT-4,20,10,30,API log\n"
    )
    assert lengths_of(text) == [(0.0, 10, 20)]


def test_rows_out_of_order_are_put_in_order() -> None:
    assert lengths_of("Timestamp,Request tokens,Response tokens\n9,1,1\n4,2,2\n") == [(0.0, 2, 2), (5.0, 1, 1)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 1: must name the columns"),
        ("a,b\n1,2\n", "line 1: must name the columns TIMESTAMP"),
        (
            "Timestamp,Request tokens\n1,2\n",
            "line 1: has the column Timestamp of burstgpt, but no column Response tokens",
        ),
        (BURSTGPT + "x,GPT-4,1,2,3,API log\n", "line 5, column Timestamp: can't be read: 'x'"),
        (BURSTGPT + "inf,GPT-4,1,2,3,API log\n", "line 5, column Timestamp: can't be read"),
        (BURSTGPT + "7,GPT-4,1\n", "line 5, column Response tokens: is missing"),
        (BURSTGPT + "7,GPT-4,-1,2,3,API log\n", "line 5, column Request tokens: must be a whole number"),
        (BURSTGPT + "7,GPT-4,1.5,2,3,API log\n", "line 5, column Request tokens: must be a whole number"),
        (BURSTGPT + "7,GPT-4,1,many,3,API log\n", "line 5, column Response tokens: can't be read: 'many'"),
        (AZURE + "yesterday,1,2\n", "line 5, column TIMESTAMP: can't be read: 'yesterday'"),
        (
            "Timestamp,Request tokens,Response tokens\n1e308,1,1\n-1e308,1,1\n",
            "trace: has times that are too far apart",
        ),
        ("Timestamp,Request tokens,Response tokens\n1,0,0\n", "trace: has no rows with prompt and output tokens"),
    ],
)
def test_a_bad_row_is_named_by_line_and_column(text: str, message: str) -> None:
    with pytest.raises(InvalidFieldError) as caught:
        convert(text.splitlines(keepends=True))
    assert str(caught.value).startswith(message)


async def test_the_command_writes_a_trace_that_can_be_read_and_says_what_it_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "burst.csv").write_text(BURSTGPT)
    out = tmp_path / "new" / "trace.jsonl"
    assert await fastserve("trace", "convert", str(tmp_path / "burst.csv"), "--out", str(out)) == 0
    assert "burstgpt: 2 jobs in 40.5 s, 1 rows without prompt or output tokens skipped" in capsys.readouterr().out
    assert [(job.job_id, job.prompt_tokens) for job in read_trace(out.read_text().splitlines())] == [
        ("0", 472),
        ("1", 1087),
    ]
    assert json.loads(out.read_text().splitlines()[0])["arrival_s"] == 0.0


async def test_only_the_first_rows_are_taken_if_asked(tmp_path: Path) -> None:
    (tmp_path / "burst.csv").write_text(BURSTGPT + "bad\n")
    out = tmp_path / "trace.jsonl"
    assert await fastserve("trace", "convert", str(tmp_path / "burst.csv"), "--out", str(out), "--rows", "1") == 0
    assert len(out.read_text().splitlines()) == 1


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"a,b\n"])
async def test_a_file_that_can_not_be_converted_ends_with_2_and_one_line(
    content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if content is not None:
        (tmp_path / "x.csv").write_bytes(content)
    assert await fastserve("trace", "convert", str(tmp_path / "x.csv"), "--out", str(tmp_path / "o")) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not (tmp_path / "o").exists()
