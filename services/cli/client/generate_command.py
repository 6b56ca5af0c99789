"""`fastserve generate`: stream one completion to stdout as it comes."""

import argparse
import asyncio
import io
import json
import os
import sys

from services.domain.generation import EndReason, GenerateRequest, SamplingRequest, StreamMessage
from services.runtime.command_line import (
    CommandError,
    ExitCode,
    ServerAccess,
    add_server,
    parser,
    positive_float,
    server_of,
)

# flag -> (field of SamplingParams, type, help)
_SAMPLING: dict[str, tuple[str, type[int] | type[float], str]] = {
    "--max-tokens": ("max_tokens", int, "maximum number of output tokens (server's default: 16)"),
    "--min-tokens": ("min_tokens", int, "minimum number of output tokens"),
    "--temperature": ("temperature", float, "0 is greedy (server's default: 1)"),
    "--top-p": ("top_p", float, "keep the smallest set of tokens that reaches this probability"),
    "--top-k": ("top_k", int, "keep this many most probable tokens"),
    "--min-p": ("min_p", float, "drop tokens below this share of the most probable one's probability"),
    "--presence-penalty": ("presence_penalty", float, "subtracted from the logits of tokens that the output contains"),
    "--frequency-penalty": (
        "frequency_penalty",
        float,
        "subtracted from a token's logit for each time the output contains it",
    ),
    "--repetition-penalty": (
        "repetition_penalty",
        float,
        "divides the logits of tokens that occurred before (multiplies negative ones)",
    ),
    "--seed": ("seed", int, "seed of the draws (default: the server picks one)"),
    "--logprobs": ("logprobs", int, "report log probabilities of this many tokens (with --json)"),
}


def _parser() -> argparse.ArgumentParser:
    made = parser("generate", "Stream one completion to stdout as it comes.")
    made.add_argument(
        "prompt", nargs="?", metavar="PROMPT|-", help="the prompt; '-' (or nothing, with a pipe) reads stdin"
    )
    add_server(made)
    made.add_argument("--model", default="", help="name of the model [the one that is served]")
    made.add_argument(
        "--request-id", default="", help="id of the request; joins a running request with the same id and body"
    )
    made.add_argument(
        "--timeout", type=positive_float, metavar="SECONDS", help="cancel the request after this time [never]"
    )
    for flag, (field, kind, text) in _SAMPLING.items():
        made.add_argument(flag, dest=field, type=kind, help=text)
    made.add_argument(
        "--stop", action="append", metavar="TEXT", help="end before this string; can be given several times"
    )
    made.add_argument(
        "--stop-token-ids",
        action="append",
        type=int,
        metavar="ID",
        help="end at this token; can be given several times",
    )
    made.add_argument("--ignore-eos", action="store_true", help="do not end at the model's end-of-sequence token")
    made.add_argument("--json", action="store_true", help="print one JSON object per message instead of text")
    return made


def _prompt(given: str | None) -> str:
    if given is not None and given != "-":
        return given
    if given is None and sys.stdin.isatty():
        raise CommandError("a PROMPT is required ('-' reads stdin)", ExitCode.REFUSED)
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise CommandError(f"refused: the prompt is not UTF-8: {error}", ExitCode.REFUSED) from error


def request_of(arguments: argparse.Namespace) -> GenerateRequest:
    """The request of the given flags; flags not given are left to the server's defaults."""
    sampling = SamplingRequest(
        **{field: getattr(arguments, field) for field, _, _ in _SAMPLING.values()},
        stop=tuple(arguments.stop or ()),
        stop_token_ids=tuple(arguments.stop_token_ids or ()),
        ignore_eos=arguments.ignore_eos,
    )
    request_id = arguments.request_id or None
    return GenerateRequest(arguments.model, request_id, text=_prompt(arguments.prompt), sampling=sampling)


def as_json(message: StreamMessage) -> dict[str, object]:
    """A message of the stream as the JSON object that --json prints."""
    piece, usage = message.piece, message.usage
    fields: dict[str, object] = {
        "request_id": message.request_id,
        "index": piece.choice,
        "first_token_number": piece.first_token_number,
        "token_ids": list(piece.token_ids),
        "text": piece.text,
        "finish_reason": None if piece.finish is None else piece.finish.value,
    }
    if piece.logprobs:
        fields["logprobs"] = [
            {
                "token_id": token.token_id,
                "logprob": token.logprob,
                "top": [{"token_id": token_id, "logprob": logprob} for token_id, logprob in token.top],
            }
            for token in piece.logprobs
        ]
    if usage is not None:
        fields["usage"] = {
            "prompt_tokens": usage.prompt_tokens,
            "completion_tokens": usage.completion_tokens,
            "total_tokens": usage.total_tokens,
            "preemptions": usage.preemptions,
        }
    return fields


async def _stream(server: ServerAccess, arguments: argparse.Namespace, request: bytes) -> bool:
    """Prints the stream; returns whether no choice was aborted."""
    from services.loadgen.gateway_client import GatewayClient

    out = sys.stdout
    ends_line = True
    aborted = False
    async with GatewayClient(server) as client:
        async for message in client.complete(request, arguments.timeout):
            aborted = aborted or message.piece.finish is EndReason.ABORT
            text = json.dumps(as_json(message)) + "\n" if arguments.json else message.piece.text
            if text:
                out.write(text)
                out.flush()
                ends_line = text.endswith("\n")
    if not ends_line:
        out.write("\n")
        out.flush()
    return not aborted


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns its exit code."""
    arguments = _parser().parse_args(argv)
    request = request_of(arguments)
    from services.loadgen.gateway_client import encode

    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        if not asyncio.run(_stream(server_of(arguments), arguments, encode(request))):
            raise CommandError("the server aborted the request: the output is incomplete")
    except BrokenPipeError:
        # The reader of the pipe is gone, so the rest of the buffer is dropped.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return ExitCode.OK
