"""The bundled model keeps what its card promises, measured anew on a slice of held-out text."""

import json
from typing import Any

import pytest
import torch
import transformers
from tokenizers import Tokenizer
from torch import Tensor

from models.corpus import Kind, documents, is_held_out
from models.folder import END_IDS, SPECIAL_TOKENS, generation_config, tokenizer_config, turn
from models.llama_module import LlamaModel, config_of, read_model
from models.measure import continue_rows, held_out_rows, measure
from tests.builders.repository_paths import BUNDLED

FOLDER_BYTES_MAX = 16_000_000
HELD_OUT_LOSS_MAX = 3.6
LOGIT_GAP_MEDIAN_MIN = 0.7
ROWS_PER_KIND = 6


@pytest.fixture(scope="module")
def model() -> LlamaModel:
    return read_model(BUNDLED)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(BUNDLED / "tokenizer.json"))


@pytest.fixture(scope="module")
def rows(tokenizer: Tokenizer) -> dict[Kind, Tensor]:
    everything = held_out_rows(tokenizer, list(documents(is_held_out)))
    return {kind: of_kind[:: max(1, len(of_kind) // ROWS_PER_KIND)] for kind, of_kind in everything.items()}


def content_of(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((BUNDLED / name).read_text())
    return content


def test_the_folder_is_at_most_16_megabytes() -> None:
    assert sum(file.stat().st_size for file in BUNDLED.rglob("*") if file.is_file()) <= FOLDER_BYTES_MAX


def test_the_folder_is_what_the_scripts_write(model: LlamaModel) -> None:
    assert content_of("config.json") == config_of(model.shape)
    assert content_of("generation_config.json") == generation_config()
    assert content_of("tokenizer_config.json") == tokenizer_config(model.shape.context)


def test_the_context_is_at_least_2048_tokens() -> None:
    assert content_of("config.json")["max_position_embeddings"] >= 2048


def test_the_recorded_figures_are_within_the_promised_limits() -> None:
    recorded = content_of("training.json")
    assert recorded["held_out_loss"] <= HELD_OUT_LOSS_MAX
    assert recorded["logit_gap_median"] >= LOGIT_GAP_MEDIAN_MIN
    assert min(recorded["own_logit_gap_median"].values()) >= LOGIT_GAP_MEDIAN_MIN
    assert recorded["steps"] == recorded["steps_planned"]


def test_a_slice_of_held_out_text_measures_within_the_promised_limits(
    model: LlamaModel, rows: dict[Kind, Tensor]
) -> None:
    measured = measure(model, rows)
    assert measured.held_out_loss <= HELD_OUT_LOSS_MAX
    assert measured.logit_gap_median >= LOGIT_GAP_MEDIAN_MIN


def test_logits_equal_those_of_transformers_up_to_the_end_of_the_context(
    model: LlamaModel, rows: dict[Kind, Tensor]
) -> None:
    reference = transformers.AutoModelForCausalLM.from_pretrained(BUNDLED, dtype=torch.float32)
    ids = rows[Kind.CODE].flatten()[None, : model.shape.context]
    assert ids.shape[1] == model.shape.context
    with torch.inference_mode():
        torch.testing.assert_close(model(ids), reference(ids).logits, rtol=1e-3, atol=1e-3)


def test_positions_near_the_end_of_the_context_are_predicted_as_well_as_those_before(
    model: LlamaModel, rows: dict[Kind, Tensor]
) -> None:
    ids = rows[Kind.CODE].flatten()[: model.shape.context]
    short = {Kind.CODE: ids[-513:][None]}
    with torch.inference_mode():
        late_logits = model(ids[None, :-1])[0, -512:]
    late_loss = torch.nn.functional.cross_entropy(late_logits, ids[-512:]).item()
    assert late_loss <= measure(model, short).held_out_loss + 0.15


def test_the_chat_template_writes_turns_as_the_model_learned_them(tokenizer: Tokenizer) -> None:
    reference = transformers.AutoTokenizer.from_pretrained(BUNDLED)
    conversation = [
        {"role": "user", "content": "What does json.dumps do?"},
        {"role": "assistant", "content": "Serialize obj to a JSON formatted str."},
        {"role": "user", "content": "Explain json."},
    ]
    text = reference.apply_chat_template(conversation, tokenize=False, add_generation_prompt=True)
    expected = turn("What does json.dumps do?", "Serialize obj to a JSON formatted str.")
    assert text == f"<|begin_of_text|>{expected}<|user|>\nExplain json.<|end_of_turn|>\n<|assistant|>\n"
    assert tokenizer.encode(text, add_special_tokens=False).ids.count(END_IDS[1]) == 3


def test_special_tokens_have_the_first_ids_and_every_text_survives_the_tokenizer(tokenizer: Tokenizer) -> None:
    assert [tokenizer.token_to_id(token) for token in SPECIAL_TOKENS] == list(range(len(SPECIAL_TOKENS)))
    text = "def f(x):\n\treturn 'größer 数 \U0001f40d'\r\n"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_an_answer_in_a_chat_comes_to_an_end(model: LlamaModel, tokenizer: Tokenizer) -> None:
    prompt = "<|begin_of_text|><|user|>\nWhat does os.path.join do?<|end_of_turn|>\n<|assistant|>\n"
    ids = torch.tensor([tokenizer.encode(prompt, add_special_tokens=False).ids]).expand(4, -1)
    continued, _ = continue_rows(model, ids, count=80, temperature=0.7, seed=3)
    ended = (continued[:, ids.shape[1] :, None] == torch.tensor(END_IDS)).any(dim=-1).any(dim=-1)
    assert ended.any()
