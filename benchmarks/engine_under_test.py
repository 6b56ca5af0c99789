"""The requests to an engine without services. Runs in the engine's process (engine_process.py)."""

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from benchmarks.engine_copies import EngineCopies
from benchmarks.machine_rates import measured_rates
from benchmarks.offline_engine import OfflineEngine, OfflineJob, offline_jobs
from benchmarks.settings import DEFAULT_MAX_BATCH
from models.corpus import documents, is_held_out
from models.measure import held_out_rows
from services.domain.ids import JobId
from services.domain.job_sampling import JobSampling
from services.worker.build import build
from services.worker.model.batch import BatchLayout, SequenceRows
from services.worker.settings import KeptEngineSettings
from services.workloads.workload import read_trace

Figures = dict[str, Any]


class EngineUnderTest:
    """An engine, made as a worker makes its own."""

    def __init__(self, settings: KeptEngineSettings, max_batch_tokens: int) -> None:
        built = build(settings, profile_folder=settings.profile_folder)
        self.threads = torch.get_num_threads()
        self._vocabulary_size = built.engine.model.config.vocabulary_size
        self._offline = OfflineEngine(built.engine, settings.max_batch or DEFAULT_MAX_BATCH, max_batch_tokens)
        self._copies = EngineCopies(built.engine)
        self._engine = built.engine
        self._folder = settings.model

    def answer(self, request: Figures) -> Figures:
        """Serves a request: `do` names the method, the rest are its arguments. Raises ValueError for an unknown one."""
        match request.pop("do"):
            case "trace":
                return self.trace(**request)
            case "single":
                return self.single(**request)
            case "rates":
                return measured_rates()
            case "held_out_loss":
                return self.held_out_loss(**request)
            case "copy":
                return self.copy(**request)
            case other:
                raise ValueError(f"there is no request {other!r}")

    def trace(self, file: str) -> Figures:
        """All jobs of a trace at once."""
        with Path(file).open(encoding="utf-8") as lines:
            jobs = offline_jobs(read_trace(lines), self._vocabulary_size)
        report = self._offline.generate(jobs)
        return {
            "jobs": len(jobs),
            "prompt_tokens": sum(len(job.prompt) for job in jobs),
            "output_tokens": report.output_tokens,
            "output_tokens_per_s": round(report.output_tokens_per_s, 3),
            "duration_s": round(report.duration_s, 6),
            "busy_s": round(report.busy_s, 6),
            "iterations": report.iterations,
        }

    def single(self, prompt_tokens: int, output_tokens: int, streams: int = 1) -> Figures:
        """One job alone, or several side by side: seconds of the prefill, and of the output tokens after the first."""
        draw = Random(prompt_tokens)
        prompts = [tuple(draw.randrange(self._vocabulary_size) for _ in range(prompt_tokens)) for _ in range(streams)]
        one_token = JobSampling(max_tokens=1, seed=0, temperature=0.0)
        prefill_s = self._seconds(prompts, one_token)
        if output_tokens == 1:
            return {"prefill_s": prefill_s}
        return {
            "prefill_s": prefill_s,
            "decode_s": self._seconds(prompts, replace(one_token, max_tokens=output_tokens)) - prefill_s,
        }

    def _seconds(self, prompts: list[tuple[int, ...]], sampling: JobSampling) -> float:
        jobs = [OfflineJob(JobId(f"{number}/0"), prompt, sampling) for number, prompt in enumerate(prompts)]
        return self._offline.generate(jobs).duration_s

    def held_out_loss(self, most_rows: int | None) -> Figures:
        """The mean loss, in nats, of each next token of held-out text (all, or at most so many rows); the model must
        have been trained on the rest. Rows of text are decoded side by side, as many as the pool holds.
        """
        by_kind = held_out_rows(Tokenizer.from_file(str(self._folder / "tokenizer.json")), list(documents(is_held_out)))
        ids_BT = torch.cat(list(by_kind.values()))[:most_rows]
        blocks = -(-ids_BT.shape[1] // self._engine.block_size)
        parts_BT = torch.split(ids_BT, self._engine.pools.device_block_count // blocks)
        loss_BT = torch.cat([self._losses(part_BT, blocks) for part_BT in parts_BT])
        return {"loss": float(loss_BT.double().mean()), "tokens": loss_BT.numel()}

    def _losses(self, ids_BT: torch.Tensor, blocks: int) -> torch.Tensor:
        """Of each next token of each row, [B, T - 1]. A row has so many blocks."""
        engine = self._engine
        losses = []
        for place in range(ids_BT.shape[1] - 1):
            rows = [
                SequenceRows(place, place + 1, range(blocks * row, blocks * (row + 1))) for row in range(len(ids_BT))
            ]
            batch = BatchLayout.of(rows, engine.block_size)
            logits_BV = engine.model(ids_BT[:, place].contiguous(), engine.cache, batch)
            losses.append(F.cross_entropy(logits_BV, ids_BT[:, place + 1], reduction="none"))
        return torch.stack(losses, dim=1)

    def copy(self, jobs: int, scattered: bool) -> Figures:
        """Seconds to offload, upload and plainly copy the KV of that many jobs of 512 tokens."""
        one_thread_s, all_threads_s = self._copies.plain_seconds(jobs)
        offload_s, upload_s = self._copies.engine_seconds(jobs, scattered)
        return {
            "bytes": self._copies.moved_bytes(jobs),
            "plain_one_thread_s": one_thread_s,
            "plain_all_threads_s": all_threads_s,
            "offload_s": offload_s,
            "upload_s": upload_s,
        }
