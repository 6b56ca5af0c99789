"""What a rank knows of a job besides the place of its KV: how far it is, and how it samples.

Positions count prompt and output together. `known_tokens` is how many tokens the job has here, `valid_tokens` (in its
tables) how many of them have their KV. A decode computes position known - 1 and samples the token of position known;
so the token sampled by one plan feeds the next one on the worker itself (step.py), and the scheduler may send that next
plan before it has seen the token.
"""

from collections.abc import Sequence

from services.domain.iteration import JobSpec
from services.worker.sampling.guide_states import GuideState, GuideStates
from services.worker.sampling.sampler import JobSampler, SampleRow
from services.worker.sampling.token_counts import TokenCounts


class JobProgress:
    """One job's progress. `counts` is None unless the job's penalties need it, `guide` unless it has one and this rank
    samples. `overflowed`: some logits of it were not finite.
    """

    __slots__ = (
        "counts",
        "guide",
        "known_tokens",
        "learned_tokens",
        "most_tokens",
        "overflowed",
        "prompt_tokens",
        "sampler",
    )

    def __init__(self, spec: JobSpec) -> None:
        self.prompt_tokens = spec.prompt_tokens
        self.known_tokens = spec.known_tokens
        self.most_tokens = spec.prompt_tokens + spec.sampling.max_tokens
        self.sampler = JobSampler(spec.sampling)
        self.counts = TokenCounts() if self.sampler.needs_counts else None
        self.learned_tokens = 0
        self.guide: GuideState | None = None
        self.overflowed = False

    def learn(self, from_token: int, token_ids: Sequence[int], guides: GuideStates) -> None:
        """Takes in the tokens of a prefill: prompt, then earlier output. Those of a prefill that was cut come again."""
        if self.guide is not None and from_token + len(token_ids) > self.prompt_tokens:
            first = max(from_token, self.prompt_tokens)
            self.guide.replay(first - self.prompt_tokens, token_ids[first - from_token :], guides.run)
        if self.counts is None:
            return
        token_ids = token_ids[max(self.learned_tokens - from_token, 0) :]
        prompt_share = max(self.prompt_tokens - self.learned_tokens, 0)
        self.counts.add_prompt(token_ids[:prompt_share])
        for token_id in token_ids[prompt_share:]:
            self.counts.add_output(token_id)
        self.learned_tokens += len(token_ids)

    def row(self) -> SampleRow:
        """What the next token is sampled with."""
        if self.guide is not None:
            self.guide.settle()
        return SampleRow(self.sampler, self.known_tokens - self.prompt_tokens, self.counts, self.guide)

    def expect_output(self) -> None:
        """Another rank samples the next token."""
        self.known_tokens += 1

    def add_output(self, token_id: int) -> bool:
        """Takes in a sampled token; returns whether it ends the job: a stop token, or one that completes its guide.

        The token that fills max_tokens ends the job too; the scheduler counts those itself.
        """
        self.known_tokens += 1
        if self.counts is not None:
            self.counts.add_output(token_id)
        ends = token_id in self.sampler.stop_tokens
        return ends if self.guide is None else self.guide.add(token_id) or ends
