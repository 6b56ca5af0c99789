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
from services.gateway.tools.response_template import ResponseTemplate, read_response_template

TEMPLATE_FILE = "chat_template.jinja"
TOOLS_TEMPLATE_FILE = "additional_chat_templates/tool_use.jinja"
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
        self.source = source
        self.for_tools: ChatTemplate = self
        """The template of conversations with tools; few models have one of its own for them."""
        self._template = environment.from_string(source)
        self._tree = environment.parse(source)
        self._special_tokens = dict(special_tokens)

    def render(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None = None) -> str:
        """The text of a conversation up to where the assistant's answer begins. `tools`: as the client gave them.

        Raises RefusedBodyError if the template refuses the conversation, or can't cope with it.
        """
        try:
            return self._template.render(
                messages=[dict(message) for message in messages],
                tools=None if tools is None else list(tools),
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
    sources = _sources(folder, config)
    if "default" not in sources:
        return (
            f"the model has no chat template: its folder has no {TEMPLATE_FILE}, "
            f"and no chat_template in {CONFIG_FILE}; use /v1/completions"
        )
    special_tokens = {**_special_tokens(_read_object(folder / _SPECIAL_TOKENS_FILE)), **_special_tokens(config)}
    try:
        template = ChatTemplate(sources["default"], special_tokens)
        if "tool_use" in sources:
            template.for_tools = ChatTemplate(sources["tool_use"], special_tokens)
        return template
    except jinja2.TemplateError as error:
        return f"the model's chat template is invalid: {error}"


def load_response_template(folder: Path) -> ResponseTemplate | str | None:
    """How the model's answers are read: None if its folder does not say, else a sentence about what is wrong there."""
    entry = _read_object(folder / CONFIG_FILE).get("response_template")
    if entry is None:
        return None
    try:
        return read_response_template(entry)
    except ModelFolderError as error:
        return f"the model's response template in {CONFIG_FILE} is invalid: {error}"


def _sources(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    """The templates by name. Files go before the entry in the tokenizer's config, which may be a list of them."""
    if (folder / TEMPLATE_FILE).is_file():
        sources = {"default": _read_text(folder / TEMPLATE_FILE)}
        if (folder / TOOLS_TEMPLATE_FILE).is_file():
            sources["tool_use"] = _read_text(folder / TOOLS_TEMPLATE_FILE)
        return sources
    entry = config.get("chat_template")
    named = {"default": entry}
    if isinstance(entry, list):
        named = {str(one.get("name")): one.get("template") for one in entry if isinstance(one, dict)}
    return {name: source for name, source in named.items() if isinstance(source, str)}


def _read_text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelFolderError(f"can't read {file}: {error}") from None


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
