"""A model's chat template, rendered as Hugging Face's `transformers` does it: sandboxed Jinja with the same options,
functions and variables.

Templates come with models, and are not trusted: the sandbox gives them no way to Python's internals, and what they see
of a conversation is plain data.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from services.domain.errors import ModelFolderError
from services.gateway.openai.error_kinds import RefusedBodyError

TEMPLATE_FILE = "chat_template.jinja"
CONFIG_FILE = "tokenizer_config.json"
_SPECIAL_TOKENS_FILE = "special_tokens_map.json"
_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class _Generation(Extension):
    """The block that marks the assistant's words for training. Here it is its content."""

    tags = {"generation"}  # noqa: RUF012 (as the base class has it)

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Dict:
    """`dict(...)` and `dict.fromkeys(...)`, and no way to the class itself."""

    def __call__(self, *values: Any, **named: Any) -> dict[Any, Any]:
        return dict(*values, **named)

    def fromkeys(self, *values: Any) -> dict[Any, Any]:
        return dict.fromkeys(*values)


class _PlainNamespace(Namespace):
    """A namespace whose attributes can't be Python's internals."""

    def __init__(*values: Any, **named: Any) -> None:
        attributes = dict(*values[1:], **named)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(values[0], attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace can't have an attribute {name!r}")


def _refuse(message: object) -> None:
    raise jinja2.TemplateError(str(message))


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals.update(raise_exception=_refuse, strftime_now=_now, dict=_Dict(), namespace=_PlainNamespace)
    return environment


class ChatTemplate:
    """A template that compiles. `special_tokens` are variables in it. Raises jinja2.TemplateError."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        environment = _environment()
        self._template = environment.from_string(source)
        self._tree = environment.parse(source)
        self._special_tokens = dict(special_tokens)

    def render(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The text of a conversation up to where the assistant's answer begins.

        Raises RefusedBodyError if the template refuses the conversation, or can't cope with it.
        """
        try:
            return self._template.render(
                messages=[dict(message) for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=True,
                **self._special_tokens,
            )
        except jinja2.TemplateError as error:
            raise _refused(error) from None
        except RecursionError:
            raise RefusedBodyError("messages", "the chat template nests too deeply", "invalid_value") from None
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise _refused(error) from None

    @cached_property
    def literals(self) -> str:
        """What the template itself can write, joined with a character that stands in no token."""
        texts = {data.data for data in self._tree.find_all(nodes.TemplateData)}
        texts |= {const.value for const in self._tree.find_all(nodes.Const) if isinstance(const.value, str)}
        return "\0".join(sorted(texts))

    @cached_property
    def takes_parts(self) -> bool:
        """Whether the template goes through the parts of a message's content; others expect a string."""
        return any(_is_content(loop.iter) for loop in self._tree.find_all(nodes.For))


def _is_content(value: nodes.Node) -> bool:
    """`message.content`, `message['content']`, a variable called so, or one of these filtered."""
    if isinstance(value, nodes.Filter) and value.node is not None:
        return _is_content(value.node)
    if isinstance(value, nodes.Getattr):
        return value.attr == "content"
    if isinstance(value, nodes.Getitem):
        return isinstance(value.arg, nodes.Const) and value.arg.value == "content"
    return isinstance(value, nodes.Name) and value.name == "content"


def _refused(error: Exception) -> RefusedBodyError:
    return RefusedBodyError("messages", f"the model's chat template refuses them: {error}", "invalid_value")


def load_template(folder: Path) -> ChatTemplate | str:
    """The model's template, or the sentence that says why there is none. Raises ModelFolderError for a damaged file."""
    config = _read_object(folder / CONFIG_FILE)
    source = _source(folder / TEMPLATE_FILE, config)
    if source is None:
        return (
            f"the model has no chat template: its folder has no {TEMPLATE_FILE}, "
            f"and no chat_template in {CONFIG_FILE}; use /v1/completions"
        )
    special_tokens = {**_special_tokens(_read_object(folder / _SPECIAL_TOKENS_FILE)), **_special_tokens(config)}
    try:
        return ChatTemplate(source, special_tokens)
    except jinja2.TemplateError as error:
        return f"the model's chat template is invalid: {error}"


def _source(file: Path, config: Mapping[str, Any]) -> str | None:
    """A file of its own goes before the entry in the tokenizer's config, which may be a list of named templates."""
    if file.is_file():
        try:
            return file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ModelFolderError(f"can't read {file}: {error}") from None
    entry = config.get("chat_template")
    if isinstance(entry, list):
        named = {one.get("name"): one.get("template") for one in entry if isinstance(one, dict)}
        entry = named.get("default")
    return entry if isinstance(entry, str) else None


def _read_object(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        document = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ModelFolderError(f"can't read {path}: {error}") from None
    if not isinstance(document, dict):
        raise ModelFolderError(f"{path} is damaged: it must be a JSON object")
    return document


def _special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    found = {}
    for name in _SPECIAL_TOKENS:
        token = config.get(name)
        content = token.get("content") if isinstance(token, dict) else token
        if isinstance(content, str):
            found[name] = content
    return found
