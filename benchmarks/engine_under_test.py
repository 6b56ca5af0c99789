"""The requests to an engine without services. Runs in the engine's process (engine_process.py)."""

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import torch

from benchmarks.engine_copies import EngineCopies
from benchmarks.machine_rates import measured_rates
from benchmarks.offline_engine import OfflineEngine, OfflineJob, offline_jobs
from services.domain.ids import JobId
from services.domain.job_sampling import JobSampling
from services.worker.build import build
from services.worker.kernels.cpu.native_decoder import NativeDecoder
from services.worker.settings import KeptEngineSettings
from services.workloads.workload import read_trace

Figures = dict[str, Any]


class EngineUnderTest:
    """An engine, made as a worker makes its own."""

    def __init__(self, settings: KeptEngineSettings, max_batch_tokens: int) -> None:
        built = build(settings, profile_folder=settings.profile_folder)
        if isinstance(built.engine.model, NativeDecoder):
            built.engine.model.sparing_rows = 0  # there are no services to leave a core to
        self.threads = torch.get_num_threads()
        self._vocabulary_size = built.engine.model.config.vocabulary_size
        self._offline = OfflineEngine(built.engine, settings.max_batch, max_batch_tokens)
        self._copies = EngineCopies(built.engine)

    def answer(self, request: Figures) -> Figures:
        """Serves a request: `do` names the method, the rest are its arguments. Raises ValueError for an unknown one."""
        match request.pop("do"):
            case "trace":
                return self.trace(**request)
            case "single":
                return self.single(**request)
            case "rates":
                return measured_rates()
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

    def single(self, prompt_tokens: int, output_tokens: int) -> Figures:
        """One job alone: seconds of its prefill, and of its output tokens after the first."""
        draw = Random(prompt_tokens)
        prompt = tuple(draw.randrange(self._vocabulary_size) for _ in range(prompt_tokens))
        one_token = JobSampling(max_tokens=1, seed=0, temperature=0.0)
        prefill_s = self._offline.generate([OfflineJob(JobId("first/0"), prompt, one_token)]).duration_s
        if output_tokens == 1:
            return {"prefill_s": prefill_s}
        sampling = replace(one_token, max_tokens=output_tokens)
        whole_s = self._offline.generate([OfflineJob(JobId("whole/0"), prompt, sampling)]).duration_s
        return {"prefill_s": prefill_s, "decode_s": whole_s - prefill_s}

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
