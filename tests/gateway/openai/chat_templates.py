"""Chat templates in the styles that public models have, and a tokenizer that knows their control tokens."""

from tokenizers import AddedToken, Tokenizer, processors

from tests.gateway.tiny_model import byte_level_tokenizer, sentence_piece_tokenizer

SPECIAL = (
    "<s>",
    "</s>",
    "<|im_start|>",
    "<|im_end|>",
    "<|begin|>",
    "<|header|>",
    "<|/header|>",
    "<|eot|>",
    "[INST]",
    "[/INST]",
)
ADDED = ("<think>", "</think>", "<start_of_turn>", "<end_of_turn>")
"""Tokens that are not special: decoding shows them."""

CHATML = """\
{%- if messages[0].role != 'system' %}{{ '<|im_start|>system\\nBe helpful.<|im_end|>\\n' }}{% endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

BRACKETS = """\
{%- if messages[0]['role'] == 'system' %}
    {%- set first = '<<SYS>>\\n' + messages[0]['content'] + '\\n<</SYS>>\\n\\n' %}{% set rest = messages[1:] %}
{%- else %}{% set first = '' %}{% set rest = messages %}{% endif %}
{%- for message in rest %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('roles must alternate user and assistant') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {{- bos_token + '[INST] ' + (first if loop.first else '') + message['content'].strip() + ' [/INST]' }}
    {%- else %}{{ ' ' + message['content'].strip() + ' ' + eos_token }}{% endif %}
{%- endfor %}"""

HEADERS = """\
{{- bos_token }}
{%- if strftime_now is defined %}{% set date = strftime_now('%Y') %}{% else %}{% set date = '2024' %}{% endif %}
{{- '<|header|>system<|/header|>\\n\\nYear: ' + date + '<|eot|>' }}
{%- for message in messages %}
    {{- '<|header|>' + message['role'] + '<|/header|>\\n\\n' + message['content'] | trim + '<|eot|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|header|>assistant<|/header|>\\n\\n' }}{% endif %}"""

PARTS = """\
{{ bos_token }}{% for message in messages %}\
<start_of_turn>{{ 'model' if message.role == 'assistant' else message.role }}
{% if message.content is string %}{{ message.content | trim }}{% else %}{% for item in message.content %}
{% if item.type == 'text' %}{{ item.text | trim }}{% endif %}{% endfor %}{% endif %}<end_of_turn>
{% endfor %}{% if add_generation_prompt %}<start_of_turn>model
{% endif %}"""

THINKING = """\
{%- set ns = namespace(last=-1) %}
{%- for message in messages %}{% if message.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == 'assistant' and '</think>' in content and loop.index0 < ns.last %}
        {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
    {%- endif %}
    {{- '<|im_start|>' ~ message.role ~ '\\n' ~ content }}
    {%- if message.tool_calls %}
        {%- for call in message.tool_calls %}{{ '\\n<call>' ~ (call.function | tojson) ~ '</call>' }}{% endfor %}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{{- '<|im_start|>assistant\\n<think>\\n' }}"""

MACROS = """\
{%- macro turn(role, text) -%}<|header|>{{ role }}<|/header|>{{ text }}<|eot|>{%- endmacro -%}
{{- bos_token -}}
{%- for message in messages -%}
    {%- if message.role == 'system' -%}{%- continue -%}{%- endif -%}
    {{- turn(message.role | upper, message.content) -}}
{%- endfor -%}
{% generation %}{{ '<|header|>ASSISTANT<|/header|>' }}{% endgeneration %}"""

PIPES = """\
{% for m in messages %}{{ '<|' + m['role'] + '|>\\n' + m['content'] + eos_token + '\\n' }}{% endfor %}\
{{ '<|assistant|>\\n' }}"""

JSON_LINES = """\
{{ bos_token }}{% for message in messages %}{{ dict(role=message.role, text=message.content) | tojson(indent=1) }}
{% endfor %}{{ {'role': 'assistant'} | tojson }}
{% if tools is none and not documents %}{{ messages | length }}{% endif %}"""

NAMED = {"default": PIPES, "tool_use": "unused"}

TEMPLATES = {
    "chatml": CHATML, "brackets": BRACKETS, "headers": HEADERS, "parts": PARTS, "thinking": THINKING, "macros": MACROS,
    "pipes": PIPES, "json_lines": JSON_LINES,
}  # fmt: skip


def with_control_tokens(tokenizer: Tokenizer) -> Tokenizer:
    """The tokenizer with all of them; its post-processor begins every text with <s>."""
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in ADDED])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return tokenizer


TOKENIZERS = {
    "byte_level": lambda: with_control_tokens(byte_level_tokenizer()),
    "sentence_piece": lambda: with_control_tokens(sentence_piece_tokenizer()),
}
