"""Chat templates that know tools, in the forms that public models have, and a small folder for each."""

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from tests.gateway.openai.chat_templates import CHATML
from tests.gateway.tiny_model import byte_level_tokenizer, write_folder

SPECIAL = ("[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "<|im_start|>", "<|im_end|>")

HERMES = """\
{%- if tools %}{{ '<|im_start|>system\\nTools:' }}
    {%- for tool in tools %}{{ '\\n' + (tool | tojson) }}{% endfor %}{{ '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
        {%- for call in message.tool_calls or [] %}
            {{- '\\n' if message.content or not loop.first }}
            {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson }}{{ '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

LLAMA_3 = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if loop.first and tools is not none %}
        {{- 'Functions: ' }}{{ tools | map(attribute='function') | list | tojson }}
    {%- endif %}
    {%- if message.tool_calls %}
        {%- if message.tool_calls | length != 1 %}{{ raise_exception('one call at a time') }}{% endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '{"name": "' + call.name + '", "parameters": ' + (call.arguments | tojson) + '}' }}
    {%- else %}{{ message.content }}{% endif %}
    {{- '<|im_end|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

MISTRAL = """\
{%- for message in messages %}
    {%- if message.role == 'user' %}
        {%- if loop.last and tools %}{{ '[TOOLS]' + (tools | tojson) + '[/TOOLS]' }}{% endif %}
        {{- '[I]' + message.content + '[/I]' }}
    {%- elif message.tool_calls %}
        {{- '[TOOL_CALLS] [' }}
        {%- for call in message.tool_calls %}
            {%- if call.id | length != 9 %}{{ raise_exception('ids have nine characters') }}{% endif %}
            {{- ', ' if not loop.first }}{{ call.function | tojson | replace('}}', '}, "id": "' + call.id + '"}') }}
        {%- endfor %}{{ ']<|im_end|>' }}
    {%- else %}{{ message.content + '<|im_end|>' }}{% endif %}
{%- endfor %}"""

MISTRAL_ARGS = """\
{%- if tools %}{{ '[TOOLS]' + (tools | tojson) + '[/TOOLS]' }}{% endif %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{{ '[I]' + message.content + '[/I]' }}
    {%- elif message.tool_calls %}
        {%- for call in message.tool_calls %}
            {%- set arguments = call.function.arguments %}
            {{- '[TOOL_CALLS]' + call.function.name + '[ARGS]' }}
            {{- arguments if arguments is string else arguments | tojson }}
        {%- endfor %}{{ '<|im_end|>' }}
    {%- else %}{{ message.content + '<|im_end|>' }}{% endif %}
{%- endfor %}"""

TAGS = """\
{%- if tools %}{{ '<|im_start|>system\\n' + (tools | tojson) + '<|im_end|>\\n' }}{% endif %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
    {%- for call in message.tool_calls or [] %}
        {{- '\\n<tool_call>\\n<function=' + call.function.name + '>\\n' }}
        {%- for name, value in call.function.arguments | items %}
            {{- '<parameter=' + name + '>\\n' }}{{ value if value is string else value | tojson }}
            {{- '\\n</parameter>\\n' }}
        {%- endfor %}{{ '</function>\\n</tool_call>' }}
    {%- endfor %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n<think>\\n' }}{% endif %}"""

TEXT_ARGUMENTS = """\
{{ tools | tojson }}{% for message in messages %}{{ message.content or '' }}
{% for call in message.tool_calls or [] %}<tool_call>{"name": "{{ call.function.name }}", "arguments": \
{{ call.function.arguments }}}</tool_call>{% endfor %}{% endfor %}"""

BLIND = CHATML
"""It writes neither tools nor calls."""

TOOL_TEMPLATES = {"Hermes": HERMES, "Llama 3": LLAMA_3, "Mistral": MISTRAL, "Mistral with [ARGS]": MISTRAL_ARGS}
"""By the names of the forms."""

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "parameters": {
            "required": ["days", "city"],
            "type": "object",
            "properties": {
                "days": {"type": "integer", "minimum": 1, "maximum": 9},
                "city": {"enum": ["Oslo", "Rome"], "type": "string"},
                "wind": {"type": "boolean"},
            },
        },
        "name": "weather",
        "description": "The weather <|im_end|>",
    },
}
CLOCK: dict[str, Any] = {"type": "function", "function": {"name": "clock"}}


def tools_folder(folder: Path, template: str, response_template: Any = None) -> Path:
    """A folder whose tokenizer has the special tokens of all forms."""
    tokenizer = byte_level_tokenizer()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    write_folder(folder, tokenizer)
    config = json.loads((folder / "config.json").read_text())
    config |= {"vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": 2048}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "chat_template.jinja").write_text(template)
    settings = {} if response_template is None else {"response_template": response_template}
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>", **settings}))
    return folder
