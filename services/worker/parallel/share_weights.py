"""Which part of each tensor of a checkpoint a rank reads.

A linear layer is cut by its rows where its output is a rank's own (queries, keys, values, inner width, logits), and by
its columns where its input is, the results then being summed over the ranks (tensor_parallel.py). A bias goes with the
rows; one of a sum is added by one rank, which has all of it. Everything else (norms, embeddings, positions) every rank
has whole.
"""

from pathlib import Path

import torch

from services.worker.model.decoder import DecoderModel
from services.worker.model.loader import filled_share
from services.worker.model.model_config import ModelConfig
from services.worker.model.weight_file import Cut
from services.worker.parallel.layout import GroupRank, Share, share_at, share_config

_QUERY, _KV, _INNER = ("q_proj",), ("k_proj", "v_proj"), ("gate_proj", "up_proj", "fc1")
_OF_QUERY, _OF_INNER = ("o_proj", "out_proj"), ("down_proj", "fc2")
_EMBEDDING, _HEAD = "embed_tokens", "lm_head"


def filled_rank(
    folder: Path,
    whole: ModelConfig,
    rank: GroupRank,
    stage_layers: tuple[range, ...],
    device: torch.device | str,
    dtype: torch.dtype,
    max_model_len: int | None = None,
) -> DecoderModel:
    """The rank's share of the folder's model, of which `whole` is the config, in plain layout. Only its parts of the
    files are read.

    Raises like `filled_model`: a tensor that the whole model does not use, or lacks, is refused on every rank.
    """
    share = share_at(whole, rank.layout.tp, rank.place)
    config = share_config(whole, rank, stage_layers)
    return filled_share(
        folder, whole, config, lambda name: cut_of(name, whole, config, share), device, dtype, max_model_len
    )


def cut_of(name: str, whole: ModelConfig, config: ModelConfig, share: Share) -> Cut | None:
    """The part of the tensor `name` that a rank with this share and config has; None: all of it."""
    layer_part, _, kind = name.rpartition(".")
    part = layer_part.rpartition(".")[2]
    cut = None
    if part in _QUERY:
        cut = Cut(0, _scaled(share.heads, whole.head_dim))
    elif part in _KV:
        cut = Cut(0, _scaled(share.kv_heads, whole.head_dim))
    elif part in _INNER:
        cut = Cut(0, share.intermediate)
    elif part in _OF_QUERY and kind == "weight":
        cut = Cut(1, _scaled(share.heads, whole.head_dim))
    elif part in _OF_INNER and kind == "weight":
        cut = Cut(1, share.intermediate)
    elif config.head_rows is not None and (part == _HEAD or (part == _EMBEDDING and not config.first_stage)):
        cut = Cut(0, config.head_rows)  # the head that is tied to it, the embedding being another stage's
    return cut if config != whole else None


def _scaled(heads: range, head_dim: int) -> range:
    return range(heads.start * head_dim, heads.stop * head_dim)
