"""OPT through real services: preempted and swapped, its jobs give token for token what they give alone, and greedy ones
what transformers gives.
"""

import asyncio
from pathlib import Path

import pytest
import torch
import transformers

from tests.builders.model_folders import tiny_opt_folder
from tests.builders.waits import wait_until
from tests.e2e.cluster import running_cluster
from tests.e2e.jobs import ForcedJob, is_guided, make_jobs, run_alone, run_together

JOBS = 16
POOL_TOKENS = 256
CLEAR_MARGIN = 1e-3
FLAGS = ("--dtype", "float32", "--threads", "1", "--kv-device-tokens", str(POOL_TOKENS), "--kv-host-tokens", "4096")


def test_opt_gives_the_tokens_of_transformers_alone_and_preempted(tmp_path: Path) -> None:
    folder = tiny_opt_folder(tmp_path, like_350m=True)
    candidates = make_jobs(JOBS, 512)
    with running_cluster(folder, tmp_path, "skip-join-mlfq", "proactive", worker_flags=FLAGS) as cluster:
        given = asyncio.run(run_alone(cluster.gateway_address, candidates))
        clear = {
            job: one
            for job, one in zip(candidates, given, strict=True)
            if not job.is_greedy or min(one.top_gaps) > CLEAR_MARGIN
        }
        assert len(clear) > JOBS // 2
        together = asyncio.run(run_together(cluster.gateway_address, list(clear)))
        counters = cluster.status().counters
        wait_until(cluster.is_idle, "every block free again")
    assert [one.token_ids for one in together] == [one.token_ids for one in clear.values()]
    assert counters.preemptions > 0
    assert counters.uploaded_bytes > 0
    reference = transformers.OPTForCausalLM.from_pretrained(folder, dtype=torch.float32)
    greedy = [(job, one.token_ids) for job, one in clear.items() if job.is_greedy and not is_guided(job)]
    assert len(greedy) > JOBS // 4
    for job, token_ids in greedy:
        assert_best(reference, job, token_ids)


def assert_best(reference: torch.nn.Module, job: ForcedJob, token_ids: tuple[int, ...]) -> None:
    """Every token is the reference's best after those before it: one pass over all of them tells."""
    with torch.no_grad():
        logits = reference(torch.tensor([job.prompt + token_ids])).logits[0]
    assert logits[len(job.prompt) - 1 : -1].argmax(-1).tolist() == list(token_ids)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)
