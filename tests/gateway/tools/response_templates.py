"""Response templates in the styles of public models, and the pieces of which answers in each style are made."""

from typing import Any, NamedTuple


class Style(NamedTuple):
    """A template, and pieces that its answers have in them."""

    spec: dict[str, Any]
    pieces: tuple[str, ...]
    prompts: tuple[str, ...] = ("",)


WORDS = ("", " ", "\n", "some words", "é 🙂 ", "{", "<", "7")
CALL = '{"name": "weather", "arguments": {"city": "Oslo", "days": "3", "wind": "true"}}'
OTHER_CALL = '{"arguments": {"x": [1, {"y": null}], "s": "a\\"}b"}, "name": "other"}'

LAX_JSON = {"name": "json", "args": {"allow_non_json": True}}

CHAT_ML = Style(
    {
        "defaults": {"role": "assistant"},
        "start_anchor": "<|im_start|>assistant\n",
        "fields": {
            "thinking": {"open": "<think>", "close": "</think>"},
            "tool_calls": {
                "open_pattern": r"\s*<tool_call>",
                "close": "</tool_call>",
                "repeats": True,
                "content": "json",
                "transform": {"type": "function", "function": "{content}"},
            },
            "content": {"close_pattern": r"\s*(?:<\|im_end\|>|<\|end\|>)"},
        },
    },
    ("<think>", "</think>", "<tool_call>", "</tool_call>", "<|im_end|>", "<tool",
     f"\n<tool_call>\n{CALL}\n</tool_call>",
     f"<tool_call>{OTHER_CALL}</tool_call>", CALL, "[1]"),
    ("", "<|im_start|>user\n<think><|im_start|>assistant\n", "<|im_start|>assistant\n<think>\n",
     "x<|im_start|>assistant\n<think>\n\n</think>\n\n"),
)  # fmt: skip
ACTIONS = Style(
    {
        "start_anchor_pattern": r"<\|chatbot\|>",
        "fields": {
            "content": {"open": "<|response|>", "close": ["<|/response|>", "<|/response|>.", "<|end|>"]},
            "tool_calls": {
                "open": "<|action|>",
                "close": "<|/action|>",
                "content": "json",
                "transform_each": True,
                "transform": {"type": "function", "function": {"name": "{tool}", "arguments": "{parameters}"}},
            },
        },
    },
    ("<|response|>", "<|/response|>", ".", "<|end|>", "<|action|>", "<|/action|>", "[", "]", ", ",
     '<|action|>[{"id": 0, "tool": "weather", "parameters": {"days": "3"}}, {"parameters": {}, "tool": "b"}]',
     '<|action|>[{"tool": "a"}]<|/action|>', '<|action|>{"tool": "a", "parameters": {}}<|/action|>'),
    ("", "<|chatbot|><|response|>well, "),
)  # fmt: skip
CHANNELS = Style(
    {
        "start_anchor": "<|start|>assistant",
        "fields": {
            "thinking": {"open": "<|channel|>analysis<|message|>", "close": "<|end|>"},
            "content": {"open": "<|channel|>final<|message|>", "close": "<|end|>"},
            "tool_calls": {
                "open_pattern": r"<\|channel\|>commentary to=functions\.(?P<name>\w+).*?<\|message\|>",
                "close": "<|call|>",
                "repeats": True,
                "content": "json",
                "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
            },
        },
    },
    ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>", "<|end|>", "<|call|>", "<|start|>assistant",
     '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Oslo", "days": "3"}<|call|>',
     '<|channel|>commentary to=functions.weather json<|message|>{\n  "days": 4.0\n}', "<|channel|>comm"),
)  # fmt: skip
TAGS = Style(
    {
        "defaults": {"role": "assistant", "content": ""},
        "start_anchor": "<|im_start|>assistant\n",
        "fields": {
            "tool_calls": {
                "open_pattern": r"\s*<tool_call>\s*<function=(?P<name>[^>\n]+)>",
                "close_pattern": r"</function>\s*</tool_call>",
                "repeats": True,
                "content": "xml-inline",
                "content_args": {
                    "tag_pattern": r"<parameter=(?P<key>[^>\n]+)>\s*(?P<value>.*?)\s*</parameter>",
                    "merge_duplicates": True,
                },
                "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
            },
            "content": {"content_args": {"strip": False}},
        },
    },
    ("\n<tool_call>\n<function=weather>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
     "<tool_call><function=other><parameter=a>1</parameter><parameter=a>b\n</parameter></function></tool_call>",
     "<tool_call>", "<function=x>", "</function>", "</tool_call>", "<parameter=wind>TRUE</parameter>"),
)  # fmt: skip
PLAIN_TAGS = Style(
    {
        "start_anchor": "<|im_start|>assistant\n",
        "fields": {
            "tool_calls": {
                "open_pattern": r"<call:(?P<tool>\w+)>",
                "close": "</call>",
                "repeats": True,
                "content": "xml-inline",
                "content_args": {
                    "tag_pattern": r"<arg (?P<key>\w+)>(?P<value>.*?)</arg>",
                    "value_parser": {"name": "json", "args": {"allow_non_json": True}},
                },
                "transform": {"type": "function", "function": {"name": "{tool}", "arguments": "{content}"}},
            },
            "content": {"content_args": {"strip": False}},
        },
    },
    ('<call:weather><arg city>Oslo</arg> <arg wind>"true"</arg>\n</call>', "<call:other>", "</call>",
     "<arg a>[1]</arg>",
     "<arg a>x", "</arg>", "<arg days>7</arg>"),
)  # fmt: skip
DIALECT = Style(
    {
        "start_anchor": ["<|turn>model\n", "<tool_response|>"],
        "fields": {
            "reasoning_content": {"open": "<|channel>thought\n", "close": "<channel|>"},
            "tool_calls": {
                "open_pattern": r"<\|tool_call>call:(?P<name>\w+)",
                "close": "<tool_call|>",
                "repeats": True,
                "content": "json",
                "content_args": {"unquoted_keys": True, "string_delims": [['<|"|>', '<|"|>']]},
                "transform": {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}},
            },
            "content": {"close": ["<turn|>", "<eos>"]},
        },
    },
    ('<|tool_call>call:weather{city:<|"|>Oslo, "N"<|"|>,days:<|"|>3<|"|>,in:{a:[true,null]}}<tool_call|>', "<turn|>",
     "<|channel>thought\n", "<channel|>", "<|tool_call>call:f", "{}", "<tool_call|>", "\x01"),
    ("", "<|turn>model\n<|channel>thought\n", "<|turn>model\n<tool_response|>"),
)  # fmt: skip
BLOCKS = Style(
    {
        "start_anchor": "<|model|>",
        "fields": {
            "thinking": {"open_pattern": r"(?:<\|model\|>)?[^<]*<\|thought\|>", "close": "<|/|>", "repeats": True,
                         "join": "", "content_args": {"strip": False}},
            "content": {"open_pattern": r"(?:<\|model\|>)?[^<]*<\|text\|>", "close": "<|/|>", "repeats": True,
                        "join": " "},
            "tool_calls": {
                "open_pattern": r"(?:<\|model\|>)?[^<]*<\|tool\|>",
                "close": "<|/|>",
                "repeats": True,
                "content": "json",
                "transform": {"function": {"name": "{content.call.name}", "arguments": "{content.call.args}"}},
            },
        },
    },
    ("<|thought|> so", "<|/|>", "<|model|>", "<|text|>yes",
     '<|tool|>{"call": {"name": "weather", "args": {"days": "5"}}}',
     "weather<|tool|>{}", "<|model|>bob<|text|>"),
    ("", "<|model|>", "<|text|>x<|/|><|model|>"),
)  # fmt: skip
ODD = Style(
    {
        "defaults": {"role": "assistant"},
        "start_anchor": "A:",
        "fields": {
            "thinking": {"open_pattern": r"(?:^|<think>\s*)", "close": "</think>"},
            "count": {"open": "<n>", "close": "</n>", "content": "int"},
            "share": {"open": "<f>", "close_pattern": r"</f>|$", "content": "float"},
            "sure": {"open": "<b>", "close": "</b>", "content": "bool"},
            "facts": {"open": "<kv>", "close": "</kv>", "content": "kv-lines",
                      "content_args": {"kv_sep": "=", "value_parser": LAX_JSON}},
            "needed": {"open": "<need>", "close": "</need>", "optional": False, "content": "json"},
        },
    },
    ("</think>", "<think> ", "<n> 4 </n>", "<n>x</n>", "<f>0.5</f>", "<f>2", "<b>True</b>", "<need>[]</need>",
     "<need>0</need>", "<kv>a = 1\nb= x y\n\n c</kv>"),
    ("", "A:", "A:<need>1</need>"),
)  # fmt: skip

STYLES = {
    "chat_ml": CHAT_ML, "actions": ACTIONS, "channels": CHANNELS, "tags": TAGS, "plain_tags": PLAIN_TAGS,
    "dialect": DIALECT, "blocks": BLOCKS,
    "odd": ODD,
}  # fmt: skip

TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "days": {"type": "integer"},
                    "wind": {"anyOf": [{"type": "boolean"}, {"type": "null"}]},
                },
            },
        },
    },
    {
        "type": "function",
        "function": {"name": "other", "parameters": {"properties": {"a": {"type": ["number", "null"]}}}},
    },
]
