#!/usr/bin/env python3
"""Makes chat.json: what transformers makes of conversations by templates of our own, in the style of published ones.

    python3 -m venv .venv-chat
    .venv-chat/bin/pip install transformers==5.17.0 jinja2==3.1.6
    .venv-chat/bin/python tests/reference/make_chat_cases.py [--out FILE]

A case has a template, what it is given (messages, others, add_generation_prompt), and `text`, or `refused` where it
raises an error. strftime_now tells 2026-11-17.
"""

import argparse
import datetime
import json
from pathlib import Path
from unittest import mock

from transformers.utils import chat_template_utils

TOKENS = dict(bos_token="<s>", eos_token="</s>")
TOOLS = [dict(type="function", function=dict(name="loom", description="Runs \"the\" loom – quickly",
                                             parameters=dict(type="object", properties=dict(n=dict(type="integer", items=[1, 2.5])),
                                                             required=["n"])))]

TEMPLATES = {
    # Roles between marks; a default system message (ChatML).
    "chatml": """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You are helpful.<|im_end|>
' }}{% endif %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}""",
    # Alternation is enforced; the system message goes into the first user message (Llama 2, Mistral).
    "inst": """{% if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim + '\\n\\n' %}
    {%- set messages = messages[1:] %}
{% else %}
    {%- set system_message = '' %}
{% endif %}
{{- bos_token }}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Roles must alternate user/assistant') }}
    {%- endif %}
    {%- if message['role'] == 'user' %}
        {{- '[INST] ' + (system_message if loop.first else '') + message['content'].strip() + ' [/INST]' }}
    {%- elif message['role'] == 'assistant' %}
        {{- ' ' ~ message.content.strip() ~ eos_token }}
    {%- endif %}
{%- endfor %}
""",
    # Headers, a date, tools as JSON (Llama 3.1).
    "headers": """{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}
    {{- "Environment: ipython\\n" }}
{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" }}
{%- if tools is not none %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}
            {{- raise_exception("This model only supports single tool-calls at once!") }}
        {%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '{"name": "' + tool_call.name + '", "parameters": ' }}
        {{- tool_call.arguments | tojson }}
        {{- "}<|eot_id|>" }}
    {%- else %}
        {{- message.content if message.content is string else message.content | tojson }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}
{%- endif %}
""",
    # A namespace found by going backwards, macros, thoughts taken away (Qwen 3).
    "thinking": """{%- macro render_content(content) %}
    {%- if content is string %}
        {{- content }}
    {%- else %}
        {%- for item in content if item.type == 'text' %}
            {{- item.text }}
        {%- else %}
            {{- '(nothing)' }}
        {%- endfor %}
    {%- endif %}
{%- endmacro %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and not(message.content is string and message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = render_content(message.content) %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning_content = '' %}
        {%- if message.reasoning_content is defined and message.reasoning_content is not none %}
            {%- set reasoning_content = message.reasoning_content %}
        {%- else %}
            {%- if '</think>' in content %}
                {%- set reasoning_content = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
                {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
            {%- endif %}
        {%- endif %}
        {%- if loop.index0 > ns.last_query_index and (loop.last or (not loop.last and reasoning_content)) %}
            {{- '<|im_start|>' + message.role + '\\n<think>\\n' + reasoning_content.strip('\\n') + '\\n</think>\\n\\n' + content.lstrip('\\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' ~ content ~ '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- endif %}
{%- endif %}""",
    # Another name for the assistant, parts of contents (Gemma 2 and 3).
    "turns": """{{ bos_token }}{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}
        {%- set first_user_prefix = messages[0]['content'] + '

' -%}
    {%- else -%}
        {%- set first_user_prefix = messages[0]['content'][0]['text'] + '

' -%}
    {%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- set role = "model" if message['role'] == 'assistant' else message['role'] -%}
    {{ '<start_of_turn>' + role + '
' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}{{ '<image>' }}{%- elif item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}
        {%- endfor -%}
    {%- else -%}
        {{ raise_exception("Invalid content type") }}
    {%- endif -%}
    {{ '<end_of_turn>
' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model
'}}
{%- endif -%}
""",
    # Nothing but marks and lines, without signs for whitespace (Phi-3, Zephyr).
    "plain-lines": """{% for message in messages %}
    {% if message['role'] == 'user' %}
{{ '<|user|>\n' + message['content'] + '<|end|>' }}
    {% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\n'  + message['content'] + '<|end|>' }}
    {% endif %}
  {# a comment #}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}
done  """,
    # Filters over lists (Command R, Granite).
    "filters": """{%- set system = messages | selectattr('role', 'equalto', 'system') | map(attribute='content') | list -%}
{{ system | join(' / ') | default('none', true) }}|{{ messages | rejectattr('role', 'in', ['system', 'tool']) | list | length }}
{%- for role, group in [('user', 1), ('assistant', 2)] %} {{ loop.index }}/{{ loop.length }}{{ loop.cycle('a', 'b') }}:{{ role | upper }}-{{ role.capitalize() }}-{{ group * 2 + 1 }}{% endfor %}
{{ messages | map(attribute='role') | unique | sort | join(',') }} {{ messages[-1].content | string | length }} {{ missing | default('?') }} {{ missing }}
{%- for key, value in {'b': 1, 'a': none, 'c': [1, 'x', true, 2.0]} | dictsort %} {{ key }}={{ value }}{% endfor %}
{{ [3, 1, 2] | sort(reverse=true) }} {{ [1, 2, 3] | sum }} {{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 5 }} {{ 'ab' * 2 }} {{ 1 < 2 <= 2 }} {{ 'x' in 'xyz' and 4 not in [1, 2] }}
{{ "it's" | tojson }} {{ ['a "b"', "it's", 1.5, none, {'k': false}] }} {{ {'ä': [1, {'b': []}], 'e': {}} | tojson(indent=2) }} {{ 'a b  c'.split() }} {{ 'a,b,c'.split(',', 1) }}
{{ ' pad ' | trim }}.{{ 'xxaxx'.strip('x') }}.{{ 'hello world' | title }}.{{ 'a-b-c' | replace('-', '+') }}.{{ 'a-b-c'.replace('-', '', 1) }}.{{ 'line\\nline' | indent(2) }}.{{ 'abc'[1] }}{{ 'abc'[-1] }}{{ 'abcdef'[1:5:2] }}{{ 'abc'[::-1] }}
{{ range(3) | list }}{{ range(5, 0, -2) | list }} {{ 'yes' if messages else 'no' }} {{ 'no' if not messages }} {{ 10 is divisibleby 5 }} {{ 3 is odd }} {{ none is none }} {{ 'a' ~ 1 ~ none ~ true }} {{ [1, 2] + [3] }} {{ (1, 2) | last }} {{ messages | first | items | first | first }}
""",
    # Loop controls, block sets, nested loops and scopes (Hermes).
    "controls": """{%- macro json_to_python_type(type, depth=0) %}{% if depth < 2 %}{{ type }}[{{ json_to_python_type(type | upper, depth + 1) }}]{% else %}.{% endif %}{% endmacro %}
{%- set text %}{{ messages | length }} messages{% endset %}{{ text }}
{%- set x = 1 %}{% for message in messages %}{% set x = x + 1 %}{% if message.role == 'system' %}{% continue %}{% endif %}{% if loop.index > 3 %}{% break %}{% endif %}
{{ loop.index }}{{ message.role[:1] }}{{ x }}{{ ' prev ' ~ loop.previtem.role if loop.previtem is defined }}{{ ' next ' ~ loop.nextitem.role if not loop.last }}{% for c in message.role %}{{ c if loop.first else '' }}{{ loop.revindex }}{% endfor %}{% endfor %}
{{ x }} {{ json_to_python_type('str') }} {{ json_to_python_type(type='int', depth=1) }}
{% generation %}{{ 'made' }}{% endgeneration %}
{%- for k, v in messages[0].items() %} {{ k }}{% else %} empty{% endfor %} {{ messages[0].get('name', 'nobody') }}{% for m in [] %}{% else %} none{% endfor %}""",
    # Signs for whitespace in every place.
    "whitespace": """  {%- if true -%}
   a   {%+ if true %}
 b {% endif -%}   c
{%- endif %}

  {{- ' d ' -}}
  e {{ 'f' }}
 {# gone #}
   {#- gone with blanks -#}   g
    {% set y = 1 %}
    h
    {%+ set z = 1 +%}
    i
""",
}

CONVERSATIONS = {
    "one": [dict(role="user", content=" Hello, loom! ")],
    "system": [dict(role="system", content="Be short.\n"), dict(role="user", content="Why?"), dict(role="assistant", content="So."),
               dict(role="user", content="Ünï “quotes” 'n' \"more\"\n<b>&amp;</b>")],
    "wrong-order": [dict(role="assistant", content="I begin."), dict(role="assistant", content="And go on.")],
    "parts": [dict(role="user", content=[dict(type="image"), dict(type="text", text=" What is it? ")])],
    "tools": [dict(role="user", content="Run it"), dict(role="assistant", content="", tool_calls=[
        dict(type="function", function=dict(name="loom", arguments=dict(n=3, s="é\n")))]), dict(role="tool", content="done"),
              dict(role="tool", content="twice"), dict(role="assistant", content="<think>\nhm\n</think>\n\nIt ran.")],
}
OTHERS = [dict(), dict(tools=TOOLS), dict(enable_thinking=False)]


class FixedTime(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2026, 11, 17, 12, 30)


def render(template: str, messages: list, others: dict, prompt: bool) -> dict:
    given = dict(tools=None, documents=None) | TOKENS | others
    try:
        compiled = chat_template_utils._compile_jinja_template(template)
        return dict(text=compiled.render(messages=messages, add_generation_prompt=prompt, **given))
    except Exception as error:  # whatever Jinja raises, ours must refuse
        return dict(refused=str(error))


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes the reference cases of chat templates.")
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent / "chat.json")
    arguments = parser.parse_args()
    cases = []
    with mock.patch.object(chat_template_utils, "datetime", FixedTime):
        for name, template in TEMPLATES.items():
            for conversation, messages in CONVERSATIONS.items():
                for others in OTHERS:
                    prompt = others == {}
                    cases.append(dict(name=f"{name}/{conversation}", template=name, conversation=conversation, others=others,
                                      add_generation_prompt=prompt, **render(template, messages, others, prompt)))
    content = dict(tokens=TOKENS, templates=TEMPLATES, conversations=CONVERSATIONS, cases=cases)
    arguments.out.write_text(json.dumps(content, ensure_ascii=False, indent=1), encoding="utf-8")
    print(f"{len(cases)} cases, {sum('refused' in case for case in cases)} refused")


if __name__ == "__main__":
    main()
