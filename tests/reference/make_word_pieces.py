#!/usr/bin/env python3
"""Makes the folders with a vocab.txt (WordPiece, as BERT's have it) that the tests compare Heddle with.

    python3 -m venv .venv-tokenizers
    .venv-tokenizers/bin/pip install transformers==5.23.0 tokenizers==0.23.3 sentencepiece==0.2.3 protobuf==7.36.2 \\
        unicodedataplus==16.0.0.post1
    .venv-tokenizers/bin/python tests/reference/make_word_pieces.py

wordpiece/KIND has vocab.txt, what lies beside it, and cases.json (see make_tokenizers.py) by BertTokenizer.from_pretrained.
The vocabularies are those of tokenizers/bert and tokenizers/bert-cased.
"""

import json
from pathlib import Path

from transformers import BertTokenizer

from make_tokenizers import write_cases, write_json

HERE = Path(__file__).parent


def vocabulary(kind: str) -> list[str]:
    vocab = json.loads((HERE / "tokenizers" / kind / "tokenizer.json").read_text(encoding="utf-8"))["model"]["vocab"]
    return sorted(vocab, key=vocab.get)


def token(content: str, **flags: bool) -> dict:
    return dict(content=content) | dict(lstrip=False, rstrip=False, normalized=False, single_word=False) | flags


KINDS = {
    # Nothing but the vocabulary.
    "bare": (vocabulary("bert"), "\n", {}),
    # Another way of cutting, with the lines of another system, and tokens that the vocabulary has not.
    "cased": ([piece + " \u3000" if i % 7 == 0 else piece for i, piece in enumerate(vocabulary("bert-cased"))], "\r\n", {
        "tokenizer_config.json": dict(
            tokenizer_class="BertTokenizer", do_lower_case=False, strip_accents=True, tokenize_chinese_chars=False,
            mask_token="[MASK]", bos_token="<s>", eos_token="</s>", additional_special_tokens=["<|end|>", "[SEP]"],
            added_tokens_decoder={"4": token("[MASK]", lstrip=True, special=True), "0": token("[PAD]", special=True),
                                  "999": token("weft", special=False, normalized=True, single_word=True)})}),
    # As folders were before tokenizer_config.json said everything.
    "older": (vocabulary("bert")[5:] + ["<unk>", "<sep>"], "\n", {
        "tokenizer_config.json": dict(tokenizer_class="DistilBertTokenizerFast", do_lower_case=True, unk_token="[UNK]"),
        "special_tokens_map.json": dict(unk_token="<unk>", sep_token=token("<sep>", rstrip=True), cls_token="<s>"),
        "added_tokens.json": {"<|end|>": 700, "Weaver": 600, "<s>": 650}}),
}


def main() -> None:
    for kind, (pieces, newline, beside) in KINDS.items():
        folder = HERE / "wordpiece" / kind
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "vocab.txt").write_bytes((newline.join(pieces) + newline).encode())
        for name, content in beside.items():
            write_json(folder / name, content)
        tokenizer = BertTokenizer.from_pretrained(folder)
        write_cases(folder, tokenizer.backend_tokenizer, "../../tokenizers/texts.json")


if __name__ == "__main__":
    main()
