"""Systems that are measured side by side: FastServe through its services, and a peer in a process of its own.

All get the same token ids, greedy, of forced lengths. A peer waits stopped, by signal, while another system is
measured: some look for work all the time.
"""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from benchmarks.engines import EngineProcess
from benchmarks.model_folders import ROOT
from benchmarks.peer_engines.environments import FOLDER, Environment
from benchmarks.servers import Server, bench, demand_no_failures, server, write_trace
from benchmarks.settings import BenchSettings
from benchmarks.single_stream import DECODE_PROMPT_TOKENS, DECODE_TOKENS, PREFILL_TOKENS, token_times_s
from services.domain.generation import GenerateRequest, SamplingRequest
from services.loadgen.gateway_client import GatewayClient, encode
from services.workloads.workload import TraceJob, random_token_ids

START_LIMIT_S = 600.0
END_LIMIT_S = 20.0
STREAM_LIMIT_S = 120.0
MOST_STREAM_INTERVAL = 1024


class Contender(Protocol):
    """A system that is ready and warm."""

    async def trace(self, trace: Sequence[TraceJob], time_scale: float) -> dict[str, float]:
        """Output tokens per second and mean job completion time of a trace, in seconds."""

    async def stream(self, prompt_tokens: int, output_tokens: int) -> list[float]:
        """When each token of a request came, in seconds since it was sent."""

    async def decode(self, repeats: int) -> float:
        """Tokens per second of one stream, after its first token: the median of a few streams."""
        streams = [await self.stream(DECODE_PROMPT_TOKENS, DECODE_TOKENS + 1) for _ in range(repeats)]
        return median(DECODE_TOKENS / (times_s[-1] - times_s[0]) for times_s in streams)

    async def prefill(self, repeats: int) -> float:
        """Prompt tokens per second, from the request to the first token: the median of a few prompts."""
        return median([PREFILL_TOKENS / (await self.stream(PREFILL_TOKENS, 1))[0] for _ in range(repeats)])

    async def first_tokens(self, prompts: Sequence[Sequence[int]]) -> list[int]:
        """The first token of each prompt."""


@dataclass(slots=True)
class Services(Contender):
    """FastServe, through its gateways: one of a server for traces, which streams few pieces, and one that a client
    watches.
    """

    settings: BenchSettings
    server: Server
    client: GatewayClient
    vocabulary_size: int
    runs: int = 0

    async def trace(self, trace: Sequence[TraceJob], time_scale: float) -> dict[str, float]:
        """See Contender; also the share of the time in which the worker computed."""
        self.runs += 1
        file = write_trace(self.settings.folder("traces") / "side-by-side.jsonl", trace)
        out = self.settings.folder("raw", f"side-by-side-{self.runs}")
        result = await bench(self.server, file, out, "--time-scale", str(time_scale))
        demand_no_failures(result, out)
        return {
            "output_tokens_per_s": result["output_tokens_per_s"],
            "mean_jct_s": result["jct_s"]["mean"],
            "busy_share": result["scheduler"]["busy_s"] / result["duration_s"],
        }

    async def stream(self, prompt_tokens: int, output_tokens: int) -> list[float]:
        """See Contender."""
        return await token_times_s(self.client, self.vocabulary_size, prompt_tokens, output_tokens)

    async def first_tokens(self, prompts: Sequence[Sequence[int]]) -> list[int]:
        """See Contender."""
        sampling = SamplingRequest(max_tokens=1, ignore_eos=True, temperature=0.0)
        found: list[int] = []
        for prompt in prompts:
            request = encode(GenerateRequest(token_ids=list(prompt), sampling=sampling))
            async for message in self.client.complete(request, STREAM_LIMIT_S):
                found += message.piece.token_ids
        return found


class Peer(Contender):
    """A peer's engine, by requests to its process; stopped between them."""

    def __init__(self, engine: EngineProcess, process: asyncio.subprocess.Process, vocabulary_size: int) -> None:
        self._engine = engine
        self._process = process
        self._vocabulary_size = vocabulary_size

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the peer's processes."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    async def _ask(self, jobs: Sequence[tuple[float, Sequence[int], int]], watched: bool) -> dict[str, Any]:
        self.signal(signal.SIGCONT)
        try:
            return await self._engine.ask("run", jobs=jobs, watched=watched)
        finally:
            self.signal(signal.SIGSTOP)

    async def trace(self, trace: Sequence[TraceJob], time_scale: float) -> dict[str, float]:
        """See Contender."""
        jobs = [
            # The ids that `fastserve bench` sends.
            (
                job.arrival_s * time_scale,
                random_token_ids(job.prompt_tokens, self._vocabulary_size, f"0/prompt/{number}"),
                job.output_tokens,
            )
            for number, job in enumerate(trace)
        ]
        figures: dict[str, float] = await self._ask(jobs, watched=False)
        return figures

    async def stream(self, prompt_tokens: int, output_tokens: int) -> list[float]:
        """See Contender."""
        prompt = random_token_ids(prompt_tokens, self._vocabulary_size, f"{prompt_tokens}/single")
        times_s: list[float] = (await self._ask([(0.0, prompt, output_tokens)], watched=True))["times_s"][0]
        return times_s

    async def first_tokens(self, prompts: Sequence[Sequence[int]]) -> list[int]:
        """See Contender."""
        answer = await self._ask([(0.0, prompt, 1) for prompt in prompts], watched=True)
        return [token_ids[0] for token_ids in answer["token_ids"]]


@asynccontextmanager
async def services(settings: BenchSettings, model: Path, kv_tokens: int) -> AsyncIterator[Services]:
    """FastServe with the compiled decoder. Nobody watches the tokens of a trace, its own or a peer's."""
    flags = ["--model", str(model), "--kernels", "native", "--kv-device-tokens", str(kv_tokens)]
    unwatched = ["--stream-interval", str(MOST_STREAM_INTERVAL)]
    async with (
        server(settings, f"side-by-side-{model.name}", flags) as watched,
        server(settings, f"side-by-side-{model.name}-traces", [*flags, *unwatched]) as for_traces,
        GatewayClient(watched.address) as client,
    ):
        yield Services(settings, for_traces, client, (await client.models())[0].vocabulary_size)


@asynccontextmanager
async def peer(
    settings: BenchSettings, environment: Environment, model: Path, kv_tokens: int, threads: int, vocabulary_size: int
) -> AsyncIterator[Peer]:
    """A peer that has loaded the model. Raises BenchError if it can't."""
    made = FOLDER / "models" / model.name / environment.name
    made.mkdir(parents=True, exist_ok=True)
    argv = [str(environment.python), "-m", "benchmarks.peer_engines.process", "--peer", environment.name]
    argv += ["--model", str(model), "--made", str(made), "--parent", str(os.getpid()), "--threads", str(threads)]
    argv += ["--kv-tokens", str(kv_tokens), "--max-batch", str(settings.max_batch)]
    log = settings.folder("logs") / f"{environment.name}-{model.name}.log"
    pipe = asyncio.subprocess.PIPE
    with log.open("wb") as lines:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=pipe,
            stdout=pipe,
            stderr=lines,
            cwd=ROOT,
            env=environment.process_variables(threads),
            start_new_session=True,
        )
    engine = EngineProcess(process, log)
    started = Peer(engine, process, vocabulary_size)
    try:
        await engine.answer(START_LIMIT_S)
        started.signal(signal.SIGSTOP)
        yield started
    finally:
        started.signal(signal.SIGCONT)
        assert process.stdin is not None, "stdin is a pipe"
        process.stdin.close()
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), END_LIMIT_S)
        started.signal(signal.SIGKILL)
        await process.wait()
