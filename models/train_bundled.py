"""Trains the bundled model from scratch on the standard library of the running interpreter.

Theory of operation
-------------------
A byte-level BPE tokenizer is trained on the training documents, then a small Llama: Muon for the matrices, AdamW
for embedding and norms, bfloat16 autocast, one thread, a fixed seed and a fixed number of steps, so that a run can be
repeated.  The learning rate warms up, stays, and falls linearly to zero.  Every step sees the same number of tokens,
first in short rows and at last in rows as long as the context, so that every position has been trained.

    python models/train_bundled.py

The folder is written through temporary files, so that a reader finds the old or the new one; `training.json` inside
holds the figures of the run.
"""

import argparse
import os
import platform
import random
import sys
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers, processors, trainers
from tokenizers import models as tokenizer_models
from torch import Tensor
from torch.nn import functional

from models.corpus import Document, Kind, documents, is_held_out
from models.folder import (
    BEGIN_ID,
    BEGIN_OF_TEXT,
    END_OF_TEXT,
    SPECIAL_TOKENS,
    generation_config,
    tokenizer_config,
    write_folder,
)
from models.llama_module import LlamaModel, LlamaShape, config_of, weights_of
from models.measure import Measurement, held_out_rows, measure

# Reading matter is a smaller part of the library than code; it is weighted up to get a model that writes sentences.
KIND_SHARES = {Kind.PROSE: 0.12, Kind.CHAT: 0.34, Kind.CODE: 0.54}
# Share of the steps done by its end, rows per step, tokens per row: 2,048 tokens a step throughout.
PHASES = ((0.62, 8, 256), (0.92, 4, 512), (1.0, 1, 2048))
WARM_UP_STEPS = 100
DECAY_SHARE = 0.55
MUON_RATE = 0.02
ADAM_RATE = 4e-3
PROBE_ROWS = 32
REPORT_EVERY_STEPS = 50


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the command line."""

    out: Path
    steps: int
    seed: int
    vocabulary: int
    hidden: int
    layer_count: int
    head_count: int
    kv_head_count: int
    intermediate: int
    context: int
    checkpoints: Path | None
    checkpoint_every_s: float
    muon_rate: float
    adam_rate: float


def train_tokenizer(training: list[Document], vocabulary: int) -> Tokenizer:
    """Byte-level BPE whose first ids are the special tokens; encoding a text puts the begin token in front."""
    tokenizer = Tokenizer(tokenizer_models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    texts = [document.text for document in training]
    prose = [document.text for document in training if document.kind is not Kind.CODE]
    tokenizer.train_from_iterator(texts + prose, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN_OF_TEXT} $A",
        pair=f"{BEGIN_OF_TEXT} $A {BEGIN_OF_TEXT} $B",
        special_tokens=[(BEGIN_OF_TEXT, BEGIN_ID)],
    )
    assert tokenizer.get_vocab_size() == vocabulary
    return tokenizer


class Stream:
    """An endless stream of the tokens of one kind, its documents shuffled again in every round."""

    def __init__(self, encoded: list[Tensor], random_source: random.Random) -> None:
        self._encoded = encoded
        self._random = random_source
        self._tokens = torch.empty(0, dtype=torch.int64)
        self._position = 0
        self.epochs = 0

    def take(self, count: int) -> Tensor:
        """The next `count` tokens."""
        while self._position + count > len(self._tokens):
            rest = self._tokens[self._position :]
            order = self._random.sample(range(len(self._encoded)), len(self._encoded))
            self._tokens = torch.cat([rest, *(self._encoded[index] for index in order)])
            self._position = 0
            self.epochs += 1
        chunk = self._tokens[self._position : self._position + count]
        self._position += count
        return chunk


def encode(tokenizer: Tokenizer, texts: list[Document]) -> list[Tensor]:
    """Each document as ids, between the begin and the end token."""
    end_id = tokenizer.token_to_id(END_OF_TEXT)
    batch = tokenizer.encode_batch([document.text for document in texts])
    return [torch.tensor([*encoding.ids, end_id], dtype=torch.int64) for encoding in batch]


def batches(streams: dict[Kind, Stream], steps: int, random_source: random.Random) -> Iterator[Tensor]:
    """One [B, L + 1] batch of ids for each step, rows drawn by kind."""
    kinds, shares = list(KIND_SHARES), list(KIND_SHARES.values())
    for step in range(steps):
        rows, length = next((rows, length) for until, rows, length in PHASES if step < until * steps)
        chosen = random_source.choices(kinds, shares, k=rows)
        yield torch.stack([streams[kind].take(length + 1) for kind in chosen])


def rate_factor(step: int, steps: int) -> float:
    """The factor of the learning rate: warms up, stays, then falls linearly to zero."""
    left = (steps - step) / (steps * DECAY_SHARE)
    return min((step + 1) / WARM_UP_STEPS, 1.0, left)


def optimizers_of(model: LlamaModel, options: Options) -> list[torch.optim.Optimizer]:
    """Muon for the matrices of the layers, AdamW for all else."""
    matrices = [weight for name, weight in model.named_parameters() if weight.dim() == 2 and ".layers." in name]
    others = [weight for name, weight in model.named_parameters() if weight.dim() != 2 or ".layers." not in name]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Muon(matrices, lr=options.muon_rate, momentum=0.95, weight_decay=0.1),
        torch.optim.AdamW(others, lr=options.adam_rate, betas=(0.9, 0.95), weight_decay=0.0, fused=True),
    ]
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["initial_lr"] = group["lr"]
    return optimizers


def write_model(model: LlamaModel, tokenizer: Tokenizer, out: Path, figures: dict[str, object]) -> None:
    """The model's folder, with the figures of the run."""
    values = {
        "config.json": config_of(model.shape),
        "generation_config.json": generation_config(),
        "tokenizer_config.json": tokenizer_config(model.shape.context),
        "training.json": figures,
    }
    write_folder(out, {"tokenizer.json": tokenizer.to_str(pretty=False) + "\n"}, values, weights_of(model))


def figures_of(options: Options, model: LlamaModel, result: Measurement, done: int, wall_s: float) -> dict[str, object]:
    """What `training.json` records."""
    return {
        "script": "models/train_bundled.py",
        "command": "python models/train_bundled.py " + " ".join(sys.argv[1:]),
        "seed": options.seed,
        "steps_planned": options.steps,
        "steps": done,
        "tokens_per_step": PHASES[0][1] * PHASES[0][2],
        "wall_s": round(wall_s, 1),
        "threads": torch.get_num_threads(),
        "machine": f"{os.cpu_count()}-core {platform.machine()} CPU",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "parameters": sum(weight.numel() for weight in model.parameters()),
        **asdict(result),
    }


def shape_of(options: Options) -> LlamaShape:
    """The model's shape as the command line gives it."""
    return LlamaShape(
        hidden=options.hidden,
        layer_count=options.layer_count,
        head_count=options.head_count,
        kv_head_count=options.kv_head_count,
        intermediate=options.intermediate,
        vocabulary=options.vocabulary,
        context=options.context,
    )


def prepare(options: Options) -> tuple[Tokenizer, dict[Kind, Stream], dict[Kind, Tensor]]:
    """Tokenizer, training streams by kind and held-out rows by kind."""
    everything = list(documents())
    training = [document for document in everything if not is_held_out(document.path)]
    tokenizer = train_tokenizer(training, options.vocabulary)
    streams = {}
    for kind in Kind:
        encoded = encode(tokenizer, [document for document in training if document.kind is kind])
        streams[kind] = Stream(encoded, random.Random(f"{options.seed} {kind.value}"))
        print(f"{kind.value}: {len(encoded)} documents, {sum(map(len, encoded))} tokens", flush=True)
    return tokenizer, streams, held_out_rows(tokenizer, everything)


def step(model: LlamaModel, optimizers: list[torch.optim.Optimizer], ids: Tensor, factor: float) -> float:
    """One step of every optimizer at `factor` of its rate; returns the loss on `ids` [B, L + 1] before it."""
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(ids[:, :-1])
    loss = functional.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())
    loss.backward()  # type: ignore[no-untyped-call]
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["initial_lr"] * factor
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


def train(options: Options) -> None:
    """Trains the model and writes its folder."""
    torch.manual_seed(options.seed)
    started_s = time.monotonic()
    tokenizer, streams, held_out = prepare(options)
    model = LlamaModel(shape_of(options))
    model.initialise()
    optimizers = optimizers_of(model, options)
    probe = {kind: rows[:PROBE_ROWS] for kind, rows in held_out.items()}
    saved_s = started_s
    recent: deque[float] = deque(maxlen=REPORT_EVERY_STEPS)
    for done, ids in enumerate(batches(streams, options.steps, random.Random(options.seed)), start=1):
        recent.append(step(model, optimizers, ids, rate_factor(done - 1, options.steps)))
        now_s = time.monotonic()
        if done % REPORT_EVERY_STEPS == 0:
            mean = sum(recent) / len(recent)
            print(f"step {done}/{options.steps} loss {mean:.3f} {now_s - started_s:.0f} s", flush=True)
        if options.checkpoints is not None and now_s - saved_s > options.checkpoint_every_s:
            result = measure(model, probe)
            figures = figures_of(options, model, result, done, now_s - started_s)
            write_model(model, tokenizer, options.checkpoints, figures)
            print(f"saved at step {done}: {result}", flush=True)
            saved_s = time.monotonic()
    wall_s = time.monotonic() - started_s
    result = measure(model, held_out)
    write_model(model, tokenizer, options.out, figures_of(options, model, result, options.steps, wall_s))
    epochs = {kind.value: stream.epochs for kind, stream in streams.items()}
    print(f"finished: {wall_s:.0f} s, {result}, epochs {epochs}", flush=True)


def parse(arguments: list[str]) -> Options:
    """The command line; the defaults are those of the committed model."""
    parser = argparse.ArgumentParser(description="Train the bundled model on Python's standard library.")
    parser.add_argument("--out", type=Path, default=Path("models/bundled"))
    parser.add_argument("--steps", type=int, default=5200)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--vocabulary", type=int, default=2048)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", dest="layer_count", type=int, default=5)
    parser.add_argument("--heads", dest="head_count", type=int, default=4)
    parser.add_argument("--kv-heads", dest="kv_head_count", type=int, default=2)
    parser.add_argument("--intermediate", type=int, default=704)
    parser.add_argument("--context", type=int, default=2048)
    parser.add_argument("--checkpoints", type=Path, help="folder that always contains a recent, usable model")
    parser.add_argument("--checkpoint-every-s", type=float, default=240.0)
    parser.add_argument("--muon-rate", type=float, default=MUON_RATE)
    parser.add_argument("--adam-rate", type=float, default=ADAM_RATE)
    return Options(**vars(parser.parse_args(arguments)))


if __name__ == "__main__":
    torch.set_num_threads(1)
    train(parse(sys.argv[1:]))
