"""Jobs that a gateway submits again when their scheduler is lost: the next one goes on from the output they bring."""

import asyncio

import grpc
import pytest

from services.domain.errors import DeadlineError, InvalidFieldError
from services.domain.generation import EndReason
from tests.scheduler.fake_gateway_for_scheduler import FakeGatewayForScheduler, logprob_of
from tests.scheduler.fake_worker_for_scheduler import steps, tokens_of
from tests.scheduler.running_scheduler import scheduler_with_peers

PROMPT = (1, 2, 3)


async def test_rule_37_a_job_goes_on_from_its_output_which_is_computed_again_as_output() -> None:
    async with scheduler_with_peers() as (served, worker, gateway):
        made = tokens_of("a", 2)
        await gateway.submit("a", PROMPT, output=6, made=made, resume=2)
        plan = await worker.step()
        (work,) = plan.entries
        assert (work.from_token, work.to_token) == (0, 5)
        assert list(work.token_ids) == [*PROMPT, *made]
        assert work.spec is not None
        # Penalties, min_tokens and draws count from the end of the prompt.
        assert (work.spec.prompt_tokens, work.spec.known_tokens) == (3, 5)
        await steps(worker, 3)
        await gateway.until_ended("a")
        assert gateway.first_numbers["a"] == 2
        assert gateway.outputs["a"] == tokens_of("a", 4, first=2)
        assert gateway.last["a"].finish is EndReason.LENGTH
        assert not gateway.last["a"].is_joined
        assert served.driver.status().counters.recomputed_tokens == 4


async def test_a_job_that_had_ended_when_its_last_word_was_lost_is_answered_and_not_run() -> None:
    async with scheduler_with_peers() as (served, _, gateway):
        await gateway.submit("whole", output=2, made=tokens_of("whole", 2), resume=2)
        await gateway.submit("stopped", output=9, made=[7, 8], resume=1, stop_token_ids=(8,))
        await gateway.until_ended("whole", "stopped")
        assert gateway.finish_of("whole") is EndReason.LENGTH
        assert gateway.finish_of("stopped") is EndReason.STOP
        assert gateway.outputs["stopped"] == [8]
        assert served.driver.status().counters.jobs_admitted == 0


async def test_a_client_that_comes_by_another_gateway_gets_all_of_it_with_its_log_probabilities() -> None:
    async with scheduler_with_peers() as (served, worker, gateway):
        made = tokens_of("a", 2)
        await gateway.submit("a", output=4, made=made, resume=2, logprobs=1)
        await worker.step()
        other = FakeGatewayForScheduler(served.channel, "g2")
        await other.join()
        await other.submit("a", output=4, logprobs=1)
        await steps(worker, 1)
        await other.until_ended("a")
        assert other.outputs["a"] == tokens_of("a", 4)
        assert other.logprobs["a"] == [logprob_of(token_id) for token_id in tokens_of("a", 4)]
        await gateway.until_ended("a")
        assert gateway.logprobs["a"] == [logprob_of(token_id) for token_id in tokens_of("a", 2, first=2)]


async def test_gateways_that_have_different_parts_of_a_job_each_get_the_rest() -> None:
    async with scheduler_with_peers() as (served, worker, gateway):
        ahead = FakeGatewayForScheduler(served.channel, "g2")
        await ahead.join()
        await gateway.submit("a", output=6, made=tokens_of("a", 1), resume=1)
        await worker.step()
        await ahead.submit("a", output=6, made=tokens_of("a", 4), resume=4)
        await steps(worker, 4)
        await gateway.until_ended("a")
        await ahead.until_ended("a")
        assert gateway.outputs["a"] == tokens_of("a", 5, first=1)
        assert ahead.outputs["a"] == tokens_of("a", 2, first=4)


async def test_age_and_deadline_hold() -> None:
    async with scheduler_with_peers() as (_, worker, gateway):
        await gateway.submit("late", output=50, made=[5], resume=1, deadline_in_s=0.05, age_s=60.0)
        await gateway.until_ended("late")
        assert isinstance(gateway.last["late"].error, DeadlineError)
        await gateway.submit("old", output=1, age_s=100.0)
        serving = asyncio.create_task(worker.serve())
        await gateway.until_ended("old")
        serving.cancel()
        timings = gateway.last["old"].timings
        assert timings is not None
        assert 100.0 <= timings.queue_s < 200.0


async def test_output_that_can_not_be_is_refused() -> None:
    async with scheduler_with_peers() as (_, _, gateway):
        await gateway.submit("a", output=4, made=[60_000], resume=1)
        await gateway.until_ended("a")
        error = gateway.last["a"].error
        assert isinstance(error, InvalidFieldError)
        assert error.field == "output_token_ids"
        await gateway.submit("b", output=1, made=[1, 2], resume=2)
        with pytest.raises(grpc.aio.AioRpcError, match="output_token_ids") as caught:
            await gateway.until_ended("b")
        assert caught.value.code() is grpc.StatusCode.INTERNAL
