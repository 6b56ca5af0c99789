"""Measures the bundled model from its folder, against the standard library of the running interpreter.

    python models/evaluate_bundled.py                       prints the figures and three samples
    python models/evaluate_bundled.py --record              also writes the figures into training.json

Measured with the weights as they are stored (bfloat16), in float32 arithmetic.  The two best logits are compared on
held-out text and, since that is where a server meets them, on the model's own greedy and sampled continuations.
"""

import argparse
import json
import sys
from dataclasses import asdict
from pathlib import Path

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from models.corpus import Kind, documents, is_held_out
from models.folder import ASSISTANT, BEGIN_OF_TEXT, END_IDS, END_OF_TURN, USER
from models.llama_module import LlamaModel, read_model
from models.measure import continue_rows, held_out_rows, measure

CONTINUED_ROWS = 12
PROMPT_TOKENS = 64
CONTINUED_TOKENS = 128
LONG_ROWS = 8
SAMPLE_TOKENS = 120
SAMPLE_TEMPERATURE = 0.7
SAMPLE_PROMPTS = (
    "The following statement",
    f"{USER}\nWhat does logging.Logger.setLevel do?{END_OF_TURN}\n{ASSISTANT}\n",
    "class FileReader:\n    def __init__(self, path):\n",
)


def own_gaps(model: LlamaModel, rows: dict[Kind, Tensor]) -> dict[str, float]:
    """Median gap along the model's own continuations of held-out prompts of every kind."""
    prompts = torch.cat([of_kind[: CONTINUED_ROWS // len(Kind), :PROMPT_TOKENS] for of_kind in rows.values()])
    medians = {}
    for name, temperature in (("greedy", 0.0), ("sampled", SAMPLE_TEMPERATURE)):
        _, gaps = continue_rows(model, prompts, CONTINUED_TOKENS, temperature, seed=1)
        medians[name] = round(gaps.median().item(), 4)
    return medians


@torch.inference_mode()
def loss_by_position(model: LlamaModel, rows: dict[Kind, Tensor]) -> dict[str, float]:
    """Held-out loss over each quarter of the context: positions near its end must not be worse."""
    context = model.shape.context
    ids = rows[Kind.CODE][:, :-1].flatten()[: LONG_ROWS * (context + 1)]
    ids = ids[: len(ids) // (context + 1) * (context + 1)].view(-1, context + 1)
    losses = [functional.cross_entropy(model(row[None, :-1])[0], row[1:], reduction="none") for row in ids]
    quarters = torch.stack(losses).mean(dim=0).view(4, -1).mean(dim=1)
    starts = range(0, context, context // 4)
    return {
        f"{start} to {start + context // 4 - 1}": round(loss, 4)
        for start, loss in zip(starts, quarters.tolist(), strict=True)
    }


def samples(model: LlamaModel, tokenizer: Tokenizer) -> list[str]:
    """One continuation of each prompt, cut at the first end token."""
    texts = []
    for seed, prompt in enumerate(SAMPLE_PROMPTS):
        ids = torch.tensor([tokenizer.encode(BEGIN_OF_TEXT + prompt, add_special_tokens=False).ids])
        continued, _ = continue_rows(model, ids, SAMPLE_TOKENS, SAMPLE_TEMPERATURE, seed)
        written = continued[0, ids.shape[1] :].tolist()
        end = next((place for place, token in enumerate(written) if token in END_IDS), len(written))
        texts.append(prompt + tokenizer.decode(written[:end], skip_special_tokens=False))
    return texts


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description="Measure the bundled model.")
    parser.add_argument("--model", type=Path, default=Path(__file__).parent / "bundled")
    parser.add_argument("--record", action="store_true", help="write the figures into training.json")
    options = parser.parse_args(arguments)
    model = read_model(options.model)
    tokenizer = Tokenizer.from_file(str(options.model / "tokenizer.json"))
    rows = held_out_rows(tokenizer, list(documents(is_held_out)))
    figures: dict[str, object] = {
        **asdict(measure(model, rows)),
        "own_logit_gap_median": own_gaps(model, rows),
        "loss_by_position": loss_by_position(model, rows),
        "folder_bytes": sum(file.stat().st_size for file in options.model.iterdir()),
    }
    print(json.dumps(figures, indent=2))
    for text in samples(model, tokenizer):
        print(f"--- sample at temperature {SAMPLE_TEMPERATURE}\n{text}")
    if options.record:
        file = options.model / "training.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | figures, indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
