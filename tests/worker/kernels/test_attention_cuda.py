"""Attention as on a GPU: how much memory a pass may take at once. What it computes is compared in test_parity.py."""

from typing import Any

import pytest
import torch
from torch import Tensor

from services.worker.kernels import attention_cuda
from services.worker.kernels.attention_cuda import CudaAttention
from services.worker.model.batch import BatchLayout, SequenceRows
from services.worker.model.decoder import DecoderModel
from tests.worker.model.reference_models import Pool, every_way, reference_logits, reference_model, tokens

LENGTHS = [61, 60, 3, 2, 9, 4]


@pytest.fixture(scope="module")
def reference() -> Any:
    return reference_model("mistral", sliding_window=13, num_key_value_heads=2)


@pytest.fixture(scope="module")
def model(reference: Any) -> DecoderModel:
    model = every_way(reference)["gpu"]
    assert isinstance(model, DecoderModel)
    return model


def decodes(pool: Pool) -> BatchLayout:
    sequences = [SequenceRows(length - 1, length, pool.blocks(length)) for length in LENGTHS]
    return BatchLayout.of(sequences, pool.block_size)


def test_a_long_decode_does_not_pad_the_others_to_its_length_beyond_the_bound(
    model: DecoderModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = Pool(model)
    position_bytes = 2 * model.config.kv_size * 4
    monkeypatch.setattr(attention_cuda, "GATHERED_BYTES", 70 * position_bytes)
    groups, _, _ = CudaAttention(model.config).begin(decodes(pool), pool.cache).decode_groups
    assert [group.row_count for group in groups] == [1, 1, 4]
    gathered = [group.page_index_2BP.numel() // 2 * pool.block_size * position_bytes for group in groups]
    assert max(gathered) <= attention_cuda.GATHERED_BYTES


def test_decodes_of_a_like_length_that_fit_are_one_group_in_the_order_of_the_batch(model: DecoderModel) -> None:
    pool = Pool(model)
    groups, order, _ = CudaAttention(model.config).begin(decodes(pool), pool.cache).decode_groups
    assert [group.row_count for group in groups] == [len(LENGTHS)]
    assert order is None


def test_no_mask_of_a_prefill_is_larger_than_a_tile_and_one_without_need_has_none(
    reference: Any, model: DecoderModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    masks: list[int] = []
    real = torch.nn.functional.scaled_dot_product_attention

    def watched(query: Tensor, keys: Tensor, values: Tensor, **options: Any) -> Tensor:
        masks.append(0 if options["attn_mask"] is None else options["attn_mask"].numel())
        return real(query, keys, values, **options)

    monkeypatch.setattr(attention_cuda, "scaled_dot_product_attention", watched)
    monkeypatch.setattr(attention_cuda, "MASK_PLACES", 200)
    pool, text = Pool(model), tokens(60)
    found = pool.run(model, [SequenceRows(0, 60, pool.blocks(60))], [text])
    assert torch.allclose(found[0], reference_logits(reference, text)[-1], atol=1e-4)
    assert len(masks) == model.config.layer_count * 20
    assert 0 < min(masks) <= max(masks) <= 200
    masks.clear()
    pool.run(model, [SequenceRows(0, 13, pool.blocks(13))], [text[:13]])
    assert masks == [0] * model.config.layer_count


def test_no_plan_is_made_for_every_new_shape(model: DecoderModel) -> None:
    torch.backends.cuda.enable_cudnn_sdp(True)
    CudaAttention(model.config)
    assert not torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]
