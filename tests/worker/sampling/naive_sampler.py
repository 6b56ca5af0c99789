"""The sampler as one would write it down: one row, Python numbers, float64. Shares no code with the real one."""

import math

from services.domain.job_sampling import JobSampling

MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
CHUNK = 64


def mix(value: int) -> int:
    value &= MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
    return value ^ (value >> 31)


def uniform(key: int, index: int) -> float:
    return min(((mix(key + (index + 1) * GOLDEN) >> 11) + 0.5) / 2**53, math.nextafter(1.0, 0.0))


def key_of(seed: int, choice: int, number: int) -> int:
    stream = mix(mix(seed + GOLDEN) + (choice + 1) * GOLDEN)
    return mix(stream + (number + 1) * GOLDEN)


def adjusted(logits: list[float], how: JobSampling, prompt: list[int], output: list[int]) -> list[float]:
    """Bias, penalties, mask of stop tokens."""
    values = list(logits)
    for token, bias in how.logit_bias:
        values[token] += bias
    for token in set(prompt) | set(output):
        if values[token] > 0:
            values[token] /= how.repetition_penalty
        else:
            values[token] *= how.repetition_penalty
    for token in set(output):
        values[token] -= how.frequency_penalty * output.count(token) + how.presence_penalty
    if len(output) < how.min_tokens:
        for token in how.stop_token_ids:
            values[token] = -math.inf
    return values


def weights(values: list[float], how: JobSampling) -> list[float]:
    """Temperature and cuts: unnormalised probabilities."""
    top = max(values)
    probabilities = [math.exp((value - top) / how.temperature) for value in values]
    order = sorted(range(len(values)), key=lambda token: (-probabilities[token], token))
    if how.top_k > 0:
        order = order[: how.top_k]
    if how.top_p < 1.0:
        total, kept, mass = sum(probabilities[token] for token in order), [], 0.0
        for token in order:
            if mass >= how.top_p * total:
                break
            kept.append(token)
            mass += probabilities[token]
        order = kept
    order = [token for token in order if probabilities[token] >= how.min_p * probabilities[order[0]]]
    return [probabilities[token] if token in set(order) else 0.0 for token in range(len(values))]


def draw(of_tokens: list[float], how: JobSampling, number: int) -> int:
    """The race of chunks, then of the tokens of the winner."""
    key = key_of(how.seed, how.choice, number)
    chunks = [sum(of_tokens[start : start + CHUNK]) for start in range(0, len(of_tokens), CHUNK)]
    chunk = max(range(len(chunks)), key=lambda one: chunks[one] / -math.log(uniform(key, 2 * one)))
    members = range(chunk * CHUNK, min((chunk + 1) * CHUNK, len(of_tokens)))
    return max(members, key=lambda token: of_tokens[token] / -math.log(uniform(key, 2 * token + 1)))


def choose(logits: list[float], how: JobSampling, prompt: list[int], output: list[int]) -> int:
    values = adjusted(logits, how, prompt, output)
    if how.temperature == 0.0:
        return values.index(max(values))
    return draw(weights(values, how), how, len(output))
