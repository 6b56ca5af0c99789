"""Model folders small enough to be made in a test: a few hundred tokens at most, and weights of a few bytes."""

import json
import struct
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

END_OF_TEXT = "<|end|>"
CONTEXT_TOKENS = 512
VOCABULARY_SIZE = 400

_TEXTS = [
    "the quick brown fox jumps over the lazy dog, and the dog sleeps",
    "naïve café, größer, 中文字符, 日本語のテキスト, 🙂🙃🙂, 👩‍👩‍👧‍👦 family",
    "def main(argv: list[str]) -> int: return 0",
] * 20


def byte_level_tokenizer() -> Tokenizer:
    """Byte-level BPE as in Llama 3 and Qwen: tokens may end inside a character."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[END_OF_TEXT],
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TEXTS, trainer)
    return tokenizer


def sentence_piece_tokenizer() -> Tokenizer:
    """As in Llama 2 and Mistral: a mark for the space before a word, bytes for what the vocabulary lacks."""
    space = "\N{LOWER ONE EIGHTH BLOCK}"
    words = [f"{space}Once", f"{space}upon", f"{space}a", f"{space}time", "s", ",", space, "é", "ness", "\n"]
    vocabulary = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for token in [*(f"<0x{byte:02X}>" for byte in range(256)), *words]:
        vocabulary[token] = len(vocabulary)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>", byte_fallback=True))
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in ("<unk>", "<s>", "</s>")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(space, " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def word_piece_tokenizer() -> Tokenizer:
    """A decoder of neither of the two common kinds: it puts spaces between words, but not before pieces of words."""
    words = ["[UNK]", "once", "upon", "a", "time", "##s", "##ly", ",", "."]
    tokenizer = Tokenizer(models.WordPiece({word: place for place, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    return tokenizer


def write_folder(folder: Path, tokenizer: Tokenizer) -> Path:
    """A folder that a gateway accepts: config, tokenizer, and a safetensors file with one tensor."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "model_type": "llama",
        "vocab_size": VOCABULARY_SIZE,
        "max_position_embeddings": CONTEXT_TOKENS,
        "eos_token_id": tokenizer.token_to_id(END_OF_TEXT) or 0,
    }
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer.save(str(folder / "tokenizer.json"))
    header = json.dumps({"weight": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + struct.pack("<f", 0.0))
    return folder


def write_byte_level_folder(folder: Path) -> Path:
    """The folder that most tests serve. Its tokenizer adds no special tokens to a prompt."""
    tokenizer = byte_level_tokenizer()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return write_folder(folder, tokenizer)
