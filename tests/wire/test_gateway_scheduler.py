"""Messages between gateway and scheduler survive the wire."""

from array import array

import pytest

from fastserve.v1 import inference_pb2
from fastserve.v1 import scheduler_pb2 as wire
from services.domain.errors import (
    AdmissionFullError,
    DeadlineError,
    DuplicateRequestError,
    FastServeError,
    InvalidFieldError,
    NotReadyError,
    ProtocolError,
)
from services.domain.generation import EndReason, TokenLogprob
from services.domain.ids import JobId
from services.domain.job_sampling import JobSampling
from services.domain.submission import CLIENT_NUMBERS, JobTimings, JobUpdate, Submission
from services.wire.gateway_scheduler import (
    MOST_AGE_S,
    cancel_from_wire,
    cancel_to_wire,
    submission_from_wire,
    submission_to_wire,
    updates_from_wire,
    updates_to_wire,
)

A = JobId("a/0")


@pytest.mark.parametrize("deadline_in_s", [None, 0.0, 2.5])
@pytest.mark.parametrize("logprobs", [None, 0])
def test_a_submission_comes_back_from_the_wire(deadline_in_s: float | None, logprobs: int | None) -> None:
    sampling = JobSampling(3, -7, choice=2, top_p=0.5, stop_token_ids=(4, 2), logprobs=logprobs, logit_bias=((1, 0.5),))
    one = Submission(A, b"digest", array("I", [7, 0]), sampling, 2, deadline_in_s, client_number=17)
    assert submission_from_wire(submission_to_wire(one)) == one


def test_a_submission_with_its_output_comes_back_from_the_wire() -> None:
    logprobs = (TokenLogprob(5, -0.5, ((5, -0.5), (6, -1.0))), TokenLogprob(6, -0.25, ()))
    sampling = JobSampling(3, -7, logprobs=2)
    one = Submission(
        A, b"digest", array("I", [7]), sampling, 2, output=array("I", [5, 6]), output_logprobs=logprobs, age_s=2.5
    )
    assert submission_from_wire(submission_to_wire(one)) == one


def test_a_job_that_is_older_than_can_be_said_is_as_old_as_can_be() -> None:
    ancient = Submission(A, b"digest", array("I", [7]), JobSampling(3, -7), age_s=1e9)
    assert submission_from_wire(submission_to_wire(ancient)).age_s == MOST_AGE_S


@pytest.mark.parametrize(
    ("message", "named"),
    [
        (wire.SubmitJob(sampling=wire.JobSampling(max_tokens=1), output_token_ids=[1, 2]), "output_token_ids"),
        (wire.SubmitJob(sampling=wire.JobSampling(max_tokens=2, logprobs=0), output_token_ids=[1]), "output_logprobs"),
        (wire.SubmitJob(output_logprobs=[inference_pb2.TokenLogprob()]), "output_logprobs"),
        (wire.SubmitJob(age_s=-1.0), "age_s"),
        (wire.SubmitJob(age_s=float("nan")), "age_s"),
    ],
)
def test_an_output_or_an_age_that_can_not_be_is_a_gateways_bug(message: wire.SubmitJob, named: str) -> None:
    message.job_id = A
    with pytest.raises(ProtocolError, match=named):
        submission_from_wire(message)


TOLD_TO_CLIENTS = (EndReason.STOP, EndReason.LENGTH, EndReason.ABORT)


def test_a_submission_without_an_id_is_a_gateways_bug() -> None:
    with pytest.raises(ProtocolError):
        submission_from_wire(wire.SubmitJob())


def test_a_client_number_out_of_its_limits_is_a_gateways_bug() -> None:
    last = wire.SubmitJob(job_id=A, client_number=CLIENT_NUMBERS - 1)
    assert submission_from_wire(last).client_number == CLIENT_NUMBERS - 1
    with pytest.raises(ProtocolError, match="client_number"):
        submission_from_wire(wire.SubmitJob(job_id=A, client_number=CLIENT_NUMBERS))


@pytest.mark.parametrize("reason", [EndReason.CANCELLED, EndReason.STOP, EndReason.DEADLINE])
def test_a_cancel_comes_back_from_the_wire(reason: EndReason) -> None:
    assert cancel_from_wire(cancel_to_wire(A, reason)) == (A, reason)


def test_updates_come_back_from_the_wire() -> None:
    logprob = TokenLogprob(5, -0.5, ((5, -0.5), (6, -1.0)))
    updates = [JobUpdate(A, 3, (5, 6), (logprob, logprob))]
    updates += [JobUpdate(A, 0, (), (), finish, None, JobTimings(0.5, 0.25, 2.0, 3)) for finish in TOLD_TO_CLIENTS]
    updates.append(JobUpdate(A, 0, (5,), (), is_joined=True))
    back = updates_from_wire(updates_to_wire(updates))
    assert [one._replace(token_ids=tuple(one.token_ids), logprobs=tuple(one.logprobs)) for one in back] == updates


@pytest.mark.parametrize(
    "error",
    [
        InvalidFieldError("sampling.max_tokens", "must be at most 5"),
        AdmissionFullError("full", 2.5),
        NotReadyError("no worker", 1.0),
        DuplicateRequestError("known"),
        DeadlineError("late"),
    ],
)
def test_errors_come_back_from_the_wire(error: FastServeError) -> None:
    (update,) = updates_from_wire(updates_to_wire([JobUpdate(A, 0, (), (), error=error)]))
    assert type(update.error) is type(error)
    assert vars(update.error) == vars(error)
    assert str(update.error) == str(error)
