"""The protocol's values compare, sort and raise as the services expect."""

import dataclasses

import pytest

from services.domain.errors import (
    AdmissionFullError,
    FastServeError,
    InvalidFieldError,
    NotReadyError,
    UnreachableError,
)
from services.domain.ids import JobId
from services.domain.job_sampling import JobSampling
from services.domain.protocol import Rank, Resident
from services.domain.submission import CLIENT_NUMBERS, client_number_of


def test_the_smaller_rank_runs_sooner_by_level_then_key_then_arrival() -> None:
    ranks = [Rank(1, 0.0, 0), Rank(0, 2.0, 1), Rank(0, 1.0, 3), Rank(0, 1.0, 2)]
    assert sorted(ranks) == [Rank(0, 1.0, 2), Rank(0, 1.0, 3), Rank(0, 2.0, 1), Rank(1, 0.0, 0)]


def test_values_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        Resident(JobId("a/0"), 16, 0, 0).valid_tokens = 3  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        JobSampling(max_tokens=1, seed=0).seed = 1  # type: ignore[misc]


def test_sampling_is_off_unless_asked_for() -> None:
    sampling = JobSampling(max_tokens=16, seed=7)
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (1.0, 1.0, 0, 0.0)
    assert (sampling.repetition_penalty, sampling.logprobs, sampling.logit_bias) == (1.0, None, ())


def test_an_error_is_one_sentence_with_what_the_client_needs() -> None:
    assert str(InvalidFieldError("sampling.n", "must be 1 to 16")) == "sampling.n: must be 1 to 16"
    assert AdmissionFullError("full", 2.0).retry_after_s == 2.0
    assert UnreachableError("gone").retry_after_s > 0
    assert isinstance(UnreachableError("gone"), NotReadyError)
    assert isinstance(NotReadyError("wait"), FastServeError)


def test_a_client_has_the_same_number_everywhere_and_others_mostly_have_another() -> None:
    assert client_number_of("") == 0
    assert client_number_of("alice") == 1878, "gateways of other machines and versions say the same"
    numbers = [client_number_of(f"client {number}\ud800") for number in range(10 * CLIENT_NUMBERS)]
    assert set(numbers) == set(range(1, CLIENT_NUMBERS)), "so many names that each number has some"
    assert len(set(numbers[:64])) >= 60
