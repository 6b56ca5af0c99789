"""The resolved sampling parameters of a job, shared by gateway, scheduler and worker."""

from dataclasses import dataclass

from services.domain.guide import Guide


@dataclass(frozen=True, slots=True)
class JobSampling:
    """All parameters of one choice, with defaults filled in. For meanings and limits see `SamplingParams` in
    inference.proto.

    `top_k` 0 means off. `stop_token_ids` includes the model's end-of-sequence tokens, unless they are ignored; with a
    guide they never are. `logprobs` None: no log probabilities are reported; `prompt_logprobs` likewise, of the prompt.
    `logit_bias` is sorted by token id. `guide` None: the output may be anything.
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
    guide: Guide | None = None
    prompt_logprobs: int | None = None
