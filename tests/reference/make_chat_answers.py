#!/usr/bin/env python3
"""Makes chat-answers.json: which tokens of conversations are answers, as transformers finds them.

    .venv-references/bin/python tests/reference/make_chat_answers.py    (the environment of make_references.py)

A case names a folder of tokenizers/, a template and messages, and has the token ids and, of each, whether it is one of
an answer. With {% generation %} in the template that is transformers' own mask; without, tokens that have a character
between the text up to where an answer begins (add_generation_prompt) and the text up to its end.
"""

import json
from pathlib import Path

from transformers import PreTrainedTokenizerFast

HERE = Path(__file__).parent
TEMPLATES = {
    "chatml": "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
              "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "marked": "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}{% if message['role'] == 'assistant' %}"
              "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{% else %}"
              "{{ message['content'] + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}"
              "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
    "inst": "{% for message in messages %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
            "{% else %}{{ ' ' + message['content'] + '</s>' }}{% endif %}{% endfor %}",
    "plain": "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}{% endfor %}"
             "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}",
}


def turns(*texts: str) -> list[dict]:
    return [dict(role="user" if i % 2 == 0 else "assistant", content=text) for i, text in enumerate(texts)]


CONVERSATIONS = [
    turns("What is a heddle?", "A part of a loom."),
    turns("Hi", "Hello! How can I help?", "Count: 1 2 3", "4, 5 and 6 – naïve 🙂\nnext line"),
    turns("x", "", "y", "  z  "),
]


def answers(tokenizer, template: str, messages: list[dict]) -> tuple[list[int], list[int]]:
    tokenizer.chat_template = template
    if "generation %}" in template:
        made = tokenizer.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
        return made["input_ids"], made["assistant_masks"]
    render = lambda part, opens: tokenizer.apply_chat_template(part, tokenize=False, add_generation_prompt=opens)
    text = render(messages, False)
    made = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    mask = [0] * len(made["input_ids"])
    for i, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        begin, end = len(render(messages[:i], True)), len(render(messages[:i + 1], False))
        for token, (first, last) in enumerate(made["offset_mapping"]):
            if last > begin and first < end and last > first:
                mask[token] = 1
    return made["input_ids"], mask


def main() -> None:
    cases = []
    for folder in ("qwen", "llama2", "gpt2"):
        tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(HERE / "tokenizers" / folder / "tokenizer.json"))
        for name in TEMPLATES:
            for number, messages in enumerate(CONVERSATIONS):
                ids, mask = answers(tokenizer, TEMPLATES[name], messages)
                cases.append(dict(tokenizer=folder, template=name, conversation=number, ids=ids, answers=mask))
                print(folder, name, number, len(ids), sum(mask))
    text = json.dumps(dict(templates=TEMPLATES, conversations=CONVERSATIONS, cases=cases), ensure_ascii=False)
    (HERE / "chat-answers.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
