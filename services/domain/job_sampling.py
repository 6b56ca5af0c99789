"""How a job's output tokens are chosen: the resolved parameters, shared by gateway, scheduler and worker."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class JobSampling:
    """All parameters of one choice, every default filled in. Meanings and limits are those of `SamplingParams` in
    inference.proto.

    `top_k` 0 is off. `stop_token_ids` holds the model's end-of-sequence tokens too, unless they are to be ignored.
    `logprobs` None reports none. `logit_bias` is sorted by token id.
    """

    max_tokens: int
    seed: int
    choice: int = 0
    min_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    stop_token_ids: tuple[int, ...] = ()
    logprobs: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
