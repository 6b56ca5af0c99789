"""float16: a job whose numbers overflow spoils itself only."""

import math

import pytest
import torch

from services.worker.kernels.attention_cuda import CudaAttention
from services.worker.model.batch import SequenceRows
from services.worker.model.decoder import DecoderModel
from tests.worker.model.reference_models import Pool, ours_of, reference_model, tokens

LOUD = 7
"""Its embedding is beyond all bounds."""


@pytest.fixture(params=["cpu", "gpu"])
def model(request: pytest.FixtureRequest) -> DecoderModel:
    made = ours_of(reference_model("llama", num_key_value_heads=2), torch.float16)
    if request.param == "gpu":
        made.attention = CudaAttention(made.config)
    return made


def decoded_beside_a_longer_one(model: DecoderModel, pool: Pool) -> torch.Tensor:
    """Logits of a sequence of 6 that ends inside of a block, and is padded to the length of another."""
    text = tokens(30)
    blocks, others = [1, 2], [3, 4, 5, 6, 8, 9, 10, 11]
    pool.run(model, [SequenceRows(0, 5, blocks), SequenceRows(0, 29, others)], [text[:5], text[:29]])
    return pool.run(model, [SequenceRows(5, 6, blocks), SequenceRows(29, 30, others)], [text[5:6], text[29:]])


def test_what_an_overflowing_job_leaves_in_blocks_reaches_nobody(model: DecoderModel) -> None:
    assert model.embedding is not None
    model.embedding[LOUD] = math.inf
    clean, spoiled = Pool(model), Pool(model)
    loud = torch.full((8,), LOUD)
    logits = spoiled.run(model, [SequenceRows(0, 8, [0, 2]), SequenceRows(0, 4, [1])], [loud, loud[:4]])
    assert not logits.isfinite().any()
    assert spoiled.cache.pool.isfinite().all()
    found = decoded_beside_a_longer_one(model, spoiled)
    assert found.isfinite().all()
    assert torch.equal(found, decoded_beside_a_longer_one(model, clean))


@pytest.mark.parametrize("left", [torch.finfo(torch.float16).max, torch.finfo(torch.float16).min])
def test_the_greatest_numbers_that_a_block_can_hold_do_not_shine_through_a_mask(
    model: DecoderModel, left: float
) -> None:
    clean, spoiled = Pool(model), Pool(model)
    spoiled.cache.pool.fill_(left)
    assert torch.equal(decoded_beside_a_longer_one(model, spoiled), decoded_beside_a_longer_one(model, clean))


def test_an_overflowing_job_in_the_same_batch_reaches_nobody(model: DecoderModel) -> None:
    assert model.embedding is not None
    model.embedding[LOUD] = math.inf
    text, pool = tokens(20), Pool(model)
    text[text == LOUD] = 8
    quiet, loud = SequenceRows(0, 20, [1, 2, 3, 4, 5]), SequenceRows(0, 20, [6, 7, 8, 9, 10])
    expected = pool.run(model, [quiet], [text])[0]
    found = pool.run(model, [quiet, loud], [text, torch.full((20,), LOUD)])
    assert torch.allclose(found[0], expected, atol=1e-2)
    assert not found[1].isfinite().any()
