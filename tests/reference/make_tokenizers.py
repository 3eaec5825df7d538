#!/usr/bin/env python3
"""Makes the small reference tokenizers that the tests compare Heddle with.

    python3 -m venv .venv-tokenizers
    .venv-tokenizers/bin/pip install tokenizers==0.23.3 sentencepiece==0.2.3 protobuf==7.36.2 unicodedataplus==16.0.0.post1
    .venv-tokenizers/bin/python tests/reference/make_tokenizers.py [--out DIR] [--only KIND]

tokenizer, tokenizer-llama3 and tokenizers/KIND hold tokenizer.json and cases.json (see tokenizer/verify.h):
  cases           texts with `ids`, without what a post-processor adds, and `decoded`, which keeps special tokens
  template_cases  the same with what the post-processor adds
  generated       hashes of what becomes of the texts that tokenizers/texts.json describes
  code_points     hashes of what becomes of every code point of Unicode 16
sentencepiece/KIND hold tokenizer.model and cases.json, whose ids are SentencePiece's own.
A hash is the first eight digits of SHA-256, over a group of texts: for ids of each text their number and the ids, for
decoded texts the number of bytes and the bytes, numbers as little-endian u32.
"""

import argparse
import hashlib
import io
import json
import struct
from functools import partial
from pathlib import Path
from typing import Callable, Iterable, Iterator

import sentencepiece
import unicodedataplus as unicode
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers, Regex

import tokenizer_texts as texts
from tokenizer_kinds import GPT2_SPECIALS, KINDS, LLAMA3_PATTERN, LLAMA3_SPECIALS, OTHER_SPECIALS, PLAIN_ADDED, t5

TEXT_GROUP, CODE_POINT_GROUP = 20, 2048
# In the vocabulary, but no merge leads to them: only `ignore_merges` gives these ids.
UNREACHABLE = ["Ġqwxz", "zqxj", "ĠÃ©Ã¨", "(((("]
TEMPLATE_TEXTS = ("", "Hi!", " the loom", "<|end|>", "<|begin_of_text|>a", "<s>a</s>")


def encode(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False).ids


def decode(tokenizer: Tokenizer, ids: list[int]) -> str:
    return tokenizer.decode(ids, skip_special_tokens=False)


def groups(items: Iterable[str], size: int) -> Iterator[list[str]]:
    items = list(items)
    return (items[begin:begin + size] for begin in range(0, len(items), size))


def hashes(encode: Callable, decode: Callable, grouped: Iterable[list[str]]) -> dict[str, str]:
    """Of ids and of decoded texts, eight digits for each group."""
    found = dict(ids="", decoded="")
    for group in grouped:
        of_ids, of_decoded = hashlib.sha256(), hashlib.sha256()
        for text in group:
            ids = encode(text)
            of_ids.update(struct.pack(f"<{len(ids) + 1}I", len(ids), *ids))
            decoded = decode(ids).encode()
            of_decoded.update(struct.pack("<I", len(decoded)) + decoded)
        found["ids"] += of_ids.hexdigest()[:8]
        found["decoded"] += of_decoded.hexdigest()[:8]
    return found


def code_point_texts() -> list[str]:
    """Each alone and inside a word."""
    return [f"{chr(c)} a{chr(c)}b" for c in range(0x110000)
            if not 0xD800 <= c < 0xE000 and unicode.category(chr(c)) != "Cn"]


def write_json(path: Path, content: dict) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")


def write_cases(folder: Path, tokenizer: Tokenizer, recipe: str = "../texts.json") -> None:
    nasty = texts.nasty_cases()[::16]
    cases = [dict(text=text, ids=ids, decoded=decode(tokenizer, ids)) for text in nasty for ids in [encode(tokenizer, text)]]
    generated = [texts.generated_text(index) for index in range(texts.COUNT)]
    functions = partial(encode, tokenizer), partial(decode, tokenizer)
    content = dict(cases=cases,
                   template_cases=[dict(text=text, ids=tokenizer.encode(text).ids) for text in TEMPLATE_TEXTS],
                   generated=dict(texts=recipe, group=TEXT_GROUP, **hashes(*functions, groups(generated, TEXT_GROUP))),
                   code_points=dict(group=CODE_POINT_GROUP,
                                    **hashes(*functions, groups(code_point_texts(), CODE_POINT_GROUP))))
    write_json(folder / "cases.json", content)
    print(f"{folder.name}: {tokenizer.get_vocab_size()} tokens, {len(cases)} cases", flush=True)


def write_kind(folder: Path, tokenizer: Tokenizer) -> None:
    write_cases(folder, tokenizer)
    (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=False), encoding="utf-8")


SENTENCEPIECE = {
    "bpe": dict(vocab_size=620, model_type="bpe", normalization_rule_name="identity", byte_fallback=True, remove_extra_whitespaces=False,
                split_digits=True, allow_whitespace_only_pieces=True),
    "unigram": dict(vocab_size=300, model_type="unigram", normalization_rule_name="identity"),
}
MARKS = {"<s>", "</s>", "<unk>"}  # tokens for us, text for SentencePiece


def write_sentencepiece(folder: Path, arguments: dict) -> None:
    """SentencePiece's own file, with the ids that its library gives."""
    lines = [line for line in texts.made_up_text(1500, seed=1).split("\n") if line]
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(lines), model_writer=model,
                                             minloglevel=2, **arguments)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    recipe = texts.recipe() | dict(pieces=[piece for piece in texts.PIECES if piece not in MARKS])
    write_json(folder.parent / "texts.json", recipe)
    cases = [dict(text=text, ids=processor.encode(text)) for text in texts.nasty_cases()[::8]]
    generated = [texts.generated_text(index, recipe["pieces"]) for index in range(texts.COUNT)]
    found = hashes(processor.encode, processor.decode, groups(generated, TEXT_GROUP))
    write_json(folder / "cases.json", dict(cases=cases, generated=dict(texts="../texts.json", group=TEXT_GROUP,
                                                                       ids=found["ids"])))
    (folder / "tokenizer.model").write_bytes(model.getvalue())
    print(f"{folder.parent.name}/{folder.name}: {processor.get_piece_size()} pieces, {len(cases)} cases", flush=True)


def write_tokenizer(folder: Path, llama3: bool) -> None:
    training_text = texts.made_up_text(1500, seed=1)
    tokenizer = Tokenizer(models.BPE())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not llama3)
    split = pre_tokenizers.Split(Regex(LLAMA3_PATTERN), behavior="isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level]) if llama3 else byte_level
    tokenizer.train_from_iterator([training_text], trainers.BpeTrainer(
        vocab_size=600, show_progress=False, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))

    trained = json.loads(tokenizer.to_str())["model"]
    vocabulary, merges = trained["vocab"], [tuple(pair) for pair in trained["merges"]]
    if llama3:
        vocabulary |= {token: len(vocabulary) + i for i, token in enumerate(UNREACHABLE)}
    tokenizer.model = models.BPE(vocab=vocabulary, merges=merges, ignore_merges=llama3)
    tokenizer.decoder = decoders.ByteLevel()
    specials = LLAMA3_SPECIALS if llama3 else GPT2_SPECIALS
    tokenizer.add_special_tokens(specials + OTHER_SPECIALS)
    tokenizer.add_tokens(PLAIN_ADDED)
    if llama3:
        bos = specials[0].content
        template = processors.TemplateProcessing(single=f"{bos} $A", pair=f"{bos} $A {bos} $B",
                                                 special_tokens=[(bos, tokenizer.token_to_id(bos))])
        tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    else:
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)

    corpus = texts.made_up_text(120, seed=2)
    corpus_ids = encode(tokenizer, corpus)
    cases = [dict(text=text, ids=ids, decoded=decode(tokenizer, ids))
             for text in texts.nasty_cases() for ids in [encode(tokenizer, text)]]
    content = dict(cases=cases, template_cases=[dict(text=text, ids=tokenizer.encode(text).ids)
                                                for text in ("", "Hi!", " the loom", "<|end|>", "<|begin_of_text|>a")],
                   corpus=corpus, corpus_tokens=len(corpus_ids),
                   corpus_sha256_of_le_u32=hashlib.sha256(struct.pack(f"<{len(corpus_ids)}I", *corpus_ids)).hexdigest())
    write_json(folder / "cases.json", content)
    (folder / "tokenizer.json").write_text(tokenizer.to_str(pretty=False), encoding="utf-8")
    print(f"{folder.name}: {tokenizer.get_vocab_size()} tokens, {len(cases)} cases, corpus {len(corpus_ids)} tokens")


def main() -> None:
    parser = argparse.ArgumentParser(description="Makes the reference tokenizers of the tests.")
    parser.add_argument("--out", type=Path, default=Path(__file__).resolve().parent, help="folder to write into")
    parser.add_argument("--only", choices=[*KINDS, "t5-whole", "sentencepiece"], help="one kind; t5-whole has all rules of T5, too large to keep")
    arguments = parser.parse_args()
    kinds_folder = arguments.out / "tokenizers"
    write_json(kinds_folder / "texts.json", texts.recipe())
    if arguments.only == "t5-whole":
        return write_kind(kinds_folder / "t5-whole", t5("nmt_nfkc"))
    for name, make in KINDS.items():
        if arguments.only in (None, name):
            write_kind(kinds_folder / name, make())
    if arguments.only in (None, "sentencepiece"):
        for name, options in SENTENCEPIECE.items():
            write_sentencepiece(arguments.out / "sentencepiece" / name, options)
    if arguments.only is None:
        write_tokenizer(arguments.out / "tokenizer", llama3=False)
        write_tokenizer(arguments.out / "tokenizer-llama3", llama3=True)


if __name__ == "__main__":
    main()
