"""What our model folders contain besides weights: special tokens, chat template, settings for generation.

A folder is written through temporary files that are renamed at the end, so that a reader finds the old file or the
new one, never half of one.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

BEGIN_OF_TEXT = "<|begin_of_text|>"
END_OF_TEXT = "<|end_of_text|>"
SYSTEM = "<|system|>"
USER = "<|user|>"
ASSISTANT = "<|assistant|>"
END_OF_TURN = "<|end_of_turn|>"
# Their ids are their places in this tuple, in every tokenizer we write.
SPECIAL_TOKENS = (BEGIN_OF_TEXT, END_OF_TEXT, SYSTEM, USER, ASSISTANT, END_OF_TURN)
BEGIN_ID = SPECIAL_TOKENS.index(BEGIN_OF_TEXT)
END_IDS = (SPECIAL_TOKENS.index(END_OF_TEXT), SPECIAL_TOKENS.index(END_OF_TURN))

CHAT_TEMPLATE = (
    "{{- bos_token }}{%- if tools %}{{- '<|system|>\\n' }}{%- for tool in tools %}{{- (tool | tojson) + '\\n' }}"
    "{%- endfor %}{{- '<|end_of_turn|>\\n' }}{%- endif %}{%- for message in messages %}"
    "{{- '<|' + ('user' if message['role'] == 'tool' else message['role']) + '|>\\n' }}"
    "{{- message['content'] or '' }}"
    "{%- for call in message['tool_calls'] or [] %}{{- '<tool_call>\\n' + (call['function'] | tojson) + "
    "'\\n</tool_call>\\n' }}{%- endfor %}{{- '<|end_of_turn|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|assistant|>\\n' }}{%- endif %}"
)
"""Tools and calls have the form of Hermes, which the bundled model has not learned: guides alone have it make calls."""
TEMPORARY_SUFFIX = ".writing"


def turn(question: str, answer: str) -> str:
    """One exchange as the chat template writes it."""
    return f"{USER}\n{question}{END_OF_TURN}\n{ASSISTANT}\n{answer}{END_OF_TURN}\n"


def generation_config() -> dict[str, object]:
    """`generation_config.json`: where to stop and how to sample by default."""
    return {
        "bos_token_id": BEGIN_ID,
        "eos_token_id": list(END_IDS),
        "do_sample": True,
        "temperature": 0.7,
        "top_p": 0.95,
    }


def tokenizer_config(context: int) -> dict[str, object]:
    """`tokenizer_config.json`; the tokenizer itself is `tokenizer.json`."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BEGIN_OF_TEXT,
        "eos_token": END_OF_TEXT,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_max_length": context,
    }


def write_folder(out: Path, texts: Mapping[str, str], values: Mapping[str, object], tensors: dict[str, Tensor]) -> None:
    """Writes `texts` as they are, `values` as JSON and `tensors` as model.safetensors, each by its file name."""
    out.mkdir(parents=True, exist_ok=True)
    contents = dict(texts) | {name: json.dumps(value, indent=2) + "\n" for name, value in values.items()}
    for name, text in contents.items():
        (out / f"{name}{TEMPORARY_SUFFIX}").write_text(text, encoding="utf-8")
    weights = out / f"model.safetensors{TEMPORARY_SUFFIX}"
    save_file(tensors, weights, metadata={"format": "pt"})
    weights.chmod(0o644)  # safetensors leaves it readable for its owner alone
    for name in [*contents, "model.safetensors"]:
        os.replace(out / f"{name}{TEMPORARY_SUFFIX}", out / name)
