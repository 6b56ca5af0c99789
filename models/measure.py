"""How good a model is: held-out loss, the gap between its two best logits, and samples of its output."""

from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from models.corpus import Document, Kind, is_held_out
from models.folder import END_IDS
from models.llama_module import LlamaModel

ROW_TOKENS = 512
BATCH_ROWS = 8


@dataclass(frozen=True, slots=True)
class Measurement:
    """Losses in nats per token; the gap is the median over all positions measured."""

    held_out_loss: float
    held_out_loss_by_kind: dict[str, float]
    held_out_tokens: int
    logit_gap_median: float


def held_out_rows(tokenizer: Tokenizer, everything: list[Document]) -> dict[Kind, Tensor]:
    """Rows [N, ROW_TOKENS + 1] of the held-out documents of each kind, in order, the last partial row dropped."""
    rows = {}
    for kind in Kind:
        texts = [document.text for document in everything if document.kind is kind and is_held_out(document.path)]
        ids = [token for encoding in tokenizer.encode_batch(texts) for token in [*encoding.ids, END_IDS[0]]]
        count = len(ids) // (ROW_TOKENS + 1)
        rows[kind] = torch.tensor(ids[: count * (ROW_TOKENS + 1)], dtype=torch.int64).view(count, ROW_TOKENS + 1)
    return rows


@torch.inference_mode()
def measure(model: LlamaModel, rows_by_kind: dict[Kind, Tensor]) -> Measurement:
    """Measures the model on all rows, in float32 arithmetic."""
    losses: dict[Kind, Tensor] = {}
    gaps: list[Tensor] = []
    for kind, rows in rows_by_kind.items():
        parts = []
        for start in range(0, len(rows), BATCH_ROWS):
            ids = rows[start : start + BATCH_ROWS]
            logits = model(ids[:, :-1]).flatten(0, 1)
            parts.append(functional.cross_entropy(logits, ids[:, 1:].flatten(), reduction="none"))
            gaps.append(gaps_of(logits))
        losses[kind] = torch.cat(parts)
    everything = torch.cat(list(losses.values()))
    return Measurement(
        held_out_loss=round(everything.mean().item(), 4),
        held_out_loss_by_kind={kind.value: round(loss.mean().item(), 4) for kind, loss in losses.items()},
        held_out_tokens=len(everything),
        logit_gap_median=round(torch.cat(gaps).median().item(), 4),
    )


def gaps_of(logits: Tensor) -> Tensor:
    """The gap between the two best logits of each row of [..., V]."""
    best = logits.topk(2, dim=-1).values
    return best[..., 0] - best[..., 1]


@torch.inference_mode()
def continue_rows(
    model: LlamaModel, ids_BL: Tensor, count: int, temperature: float, seed: int
) -> tuple[Tensor, Tensor]:
    """Continues every row by `count` tokens (temperature 0: greedily); returns rows and gaps [B, count].

    Without a KV cache, so for short texts only.
    """
    source = torch.Generator().manual_seed(seed)
    gaps = []
    for _ in range(count):
        logits_BV = model(ids_BL)[:, -1]
        gaps.append(gaps_of(logits_BV))
        if temperature > 0:
            chosen_B1 = torch.multinomial((logits_BV / temperature).softmax(dim=-1), 1, generator=source)
        else:
            chosen_B1 = logits_BV.argmax(dim=-1, keepdim=True)
        ids_BL = torch.cat((ids_BL, chosen_B1), dim=1)
    return ids_BL, torch.stack(gaps, dim=1)
