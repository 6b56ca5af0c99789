"""The engine alone gives the same tokens as any other way to run its jobs."""

import pytest

from benchmarks.offline_engine import OfflineEngine, OfflineJob, offline_jobs
from services.domain.errors import InvalidFieldError
from services.domain.ids import JobId
from services.workloads.workload import TraceJob
from tests.worker.tiny_engine import alone, new_engine, prompt_of, sampling


def job_of(number: int, prompt_tokens: int, max_tokens: int) -> OfflineJob:
    return OfflineJob(JobId(f"{number}/0"), prompt_of(number, prompt_tokens), sampling(max_tokens, seed=number))


def test_more_jobs_than_slots_and_blocks_all_end_with_their_own_tokens() -> None:
    engine = new_engine(device_blocks=16)
    jobs = [job_of(number, 3 + 4 * number, 4 + number % 3) for number in range(7)]
    offline = OfflineEngine(engine, max_batch=3, max_batch_tokens=20)
    report = offline.generate(jobs)
    assert dict(report.outputs) == {job.job_id: alone(job.prompt, job.sampling) for job in jobs}
    assert report.output_tokens == sum(job.sampling.max_tokens for job in jobs)
    assert offline.generate(jobs[:2]).outputs.keys() == {jobs[0].job_id, jobs[1].job_id}
    engine.check()
    engine.close()


def test_a_job_that_never_fits_is_refused() -> None:
    engine = new_engine(device_blocks=4)
    with pytest.raises(InvalidFieldError, match="needs 17 tokens"):
        OfflineEngine(engine).generate([job_of(0, 8, 10)])
    engine.close()


def test_a_trace_becomes_jobs_of_its_lengths() -> None:
    jobs = offline_jobs([TraceJob(name, 0.5, prompt_tokens=3, output_tokens=2) for name in "ab"], vocabulary_size=50)
    assert [(len(job.prompt), job.sampling.max_tokens) for job in jobs] == [(3, 2), (3, 2)]
    assert jobs[0].prompt != jobs[1].prompt
    assert max(jobs[0].prompt + jobs[1].prompt) < 50
