"""One small tokenizer of each kind that published models have, trained on made-up text."""

import io
import json
from typing import Callable

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from tokenizer_texts import made_up_text

GPT2_SPECIALS = [AddedToken("<|endoftext|>", special=True, normalized=False)]
LLAMA3_SPECIALS = [AddedToken(f"<|{name}|>", special=True, normalized=False)
                   for name in ("begin_of_text", "end_of_text", "start_header_id", "end_header_id", "eot_id")]
OTHER_SPECIALS = [
    AddedToken("<mask>", special=True, normalized=False, lstrip=True),
    AddedToken("<|sep|>", special=True, normalized=False, rstrip=True),
    AddedToken("<|both|>", special=True, normalized=False, lstrip=True, rstrip=True),
]
PLAIN_ADDED = [
    AddedToken("<|end|>", normalized=False), AddedToken("<|end|>ing", normalized=False),  # the longer one must win
    AddedToken("weft", normalized=False, single_word=True), AddedToken("[TOOL]", normalized=True),
    AddedToken("工具", normalized=True), AddedToken("    ", normalized=True),
]
LLAMA3_PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
                  r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN_PATTERN = LLAMA3_PATTERN.replace(r"\p{N}{1,3}", r"\p{N}")
GPT4O_PATTERN = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
DEEPSEEK_PATTERN = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
                    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
SPACE = "\u2581"


def special(*contents: str, **flags: bool) -> list[AddedToken]:
    return [AddedToken(content, special=True, **{"normalized": False} | flags) for content in contents]


def training_text() -> list[str]:
    return made_up_text(1500, seed=1).split("\n")


def byte_level(pre_tokenizer, *, vocabulary: int = 560, normalizer=None, trained_with=None, ignore_merges: bool = False,
               suffix: str | None = None, specials: list[AddedToken] = GPT2_SPECIALS) -> Tokenizer:
    """A byte-level BPE with the added tokens that are hardest to match."""
    ends = dict(end_of_word_suffix=suffix) if suffix else {}
    tokenizer = Tokenizer(models.BPE(**ends))
    tokenizer.pre_tokenizer = trained_with or pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.train_from_iterator(training_text(), trainers.BpeTrainer(
        vocab_size=vocabulary, show_progress=False, **ends,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())))
    trained = json.loads(tokenizer.to_str())["model"]
    vocab = trained["vocab"]
    if suffix:  # a word may end in any byte
        for character in sorted(pre_tokenizers.ByteLevel.alphabet()):
            vocab.setdefault(character + suffix, len(vocab))
    tokenizer.model = models.BPE(vocab=vocab, merges=[tuple(pair) for pair in trained["merges"]],
                                 ignore_merges=ignore_merges, **ends)
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(specials + OTHER_SPECIALS)
    tokenizer.add_tokens(PLAIN_ADDED)
    return tokenizer


def surround(tokenizer: Tokenizer, single: str, pair: str, names: list[str]) -> None:
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single, pair=pair, special_tokens=[(name, tokenizer.token_to_id(name)) for name in names])


def gpt2() -> Tokenizer:
    return byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))


def roberta() -> Tokenizer:
    tokenizer = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True), specials=special("<s>", "<pad>", "</s>", "<unk>"))
    tokenizer.post_processor = processors.RobertaProcessing(("</s>", tokenizer.token_to_id("</s>")),
                                                            ("<s>", tokenizer.token_to_id("<s>")), add_prefix_space=True)
    return tokenizer


def split_then_bytes(*splits) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def llama3() -> Tokenizer:
    tokenizer = byte_level(split_then_bytes(pre_tokenizers.Split(Regex(LLAMA3_PATTERN), "isolated")), ignore_merges=True,
                           specials=LLAMA3_SPECIALS)
    surround(tokenizer, "<|begin_of_text|> $A", "<|begin_of_text|> $A <|begin_of_text|> $B", ["<|begin_of_text|>"])
    return tokenizer


def qwen() -> Tokenizer:
    return byte_level(split_then_bytes(pre_tokenizers.Split(Regex(QWEN_PATTERN), "isolated")), normalizer=normalizers.NFC())


def gpt4o() -> Tokenizer:
    return byte_level(split_then_bytes(pre_tokenizers.Split(Regex(GPT4O_PATTERN), "removed", invert=True)))


def deepseek() -> Tokenizer:
    return byte_level(split_then_bytes(pre_tokenizers.Split(Regex(r"\p{N}{1,3}"), "isolated"),
                                       pre_tokenizers.Split(Regex("[一-龥぀-ゟ゠-ヿ]+"), "isolated"),
                                       pre_tokenizers.Split(Regex(DEEPSEEK_PATTERN), "isolated")),
                      specials=special("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"))


def falcon() -> Tokenizer:
    """Cuts again after bytes have become characters."""
    return byte_level(pre_tokenizers.Sequence([
        pre_tokenizers.Punctuation("contiguous"), pre_tokenizers.ByteLevel(add_prefix_space=False),
        pre_tokenizers.Digits(individual_digits=False), pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated")]))


def bloom() -> Tokenizer:
    """A class inside a class."""
    return byte_level(split_then_bytes(pre_tokenizers.Split(Regex(" ?[^(\\s|[.,!?…。，、।۔،])]+"), "isolated")),
                      specials=special("<unk>", "<s>", "</s>", "<pad>"))


def neox() -> Tokenizer:
    return byte_level(pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                                               pre_tokenizers.ByteLevel(add_prefix_space=False)]),
                      normalizer=normalizers.NFKC())


def clip() -> Tokenizer:
    """The ends of words are part of tokens."""
    pattern = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
    return byte_level(
        pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "removed", invert=True),
                                 pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]),
        normalizer=normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()]),
        suffix="</w>")


def sentencepiece_bpe(byte_fallback: bool = True) -> Tokenizer:
    """Characters with a mark for spaces; what has no character falls back to bytes."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace()
    trained.train_from_iterator(training_text(), trainers.BpeTrainer(vocab_size=420, limit_alphabet=110, show_progress=False))
    learnt = json.loads(trained.to_str())["model"]
    tokens = ["<unk>", "<s>", "</s>"] + ([f"<0x{byte:02X}>" for byte in range(256)] if byte_fallback else [])
    merges = [(SPACE, SPACE), (SPACE * 2, SPACE * 2)] + [tuple(pair) for pair in learnt["merges"]]
    tokens += [SPACE * 2, SPACE * 4] + [token for token in learnt["vocab"] if token not in (SPACE * 2, SPACE * 4)]
    vocab = {token: index for index, token in enumerate(dict.fromkeys(tokens))}
    return Tokenizer(models.BPE(vocab=vocab, merges=list(dict.fromkeys(merges)), unk_token="<unk>", fuse_unk=True,
                                byte_fallback=byte_fallback))


def spaces_back(*, strip: bool) -> decoders.Decoder:
    steps = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    return decoders.Sequence(steps + ([decoders.Strip(" ", 1, 0)] if strip else []))


def llama2() -> Tokenizer:
    tokenizer = sentencepiece_bpe()
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    tokenizer.decoder = spaces_back(strip=True)
    tokenizer.add_special_tokens(special("<unk>", "<s>", "</s>"))
    tokenizer.add_tokens(PLAIN_ADDED)
    surround(tokenizer, "<s> $A", "<s> $A <s> $B", ["<s>"])
    return tokenizer


def mistral() -> Tokenizer:
    tokenizer = sentencepiece_bpe()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = spaces_back(strip=True)
    tokenizer.add_special_tokens(special("<unk>", "<s>", "</s>", "[INST]", "[/INST]"))
    tokenizer.add_tokens(PLAIN_ADDED)
    surround(tokenizer, "<s> $A", "<s> $A <s> $B", ["<s>"])
    return tokenizer


def gemma() -> Tokenizer:
    tokenizer = sentencepiece_bpe()
    tokenizer.normalizer = normalizers.Replace(" ", SPACE)
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.decoder = spaces_back(strip=False)
    tokenizer.add_special_tokens(special("<pad>", "</s>", "<s>", "<unk>", "<mask>"))
    tokenizer.add_tokens([AddedToken("\n\n", normalized=False), AddedToken("\t", normalized=False),
                          AddedToken(SPACE * 3, normalized=False), AddedToken("<b>", normalized=False)])
    surround(tokenizer, "<s> $A", "<s> $A <s> $B", ["<s>"])
    return tokenizer


def phi3() -> Tokenizer:
    tokenizer = sentencepiece_bpe()
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(SPACE), normalizers.Replace(" ", SPACE)])
    tokenizer.decoder = spaces_back(strip=True)
    tokenizer.add_special_tokens(special("<unk>", "<s>") + special("</s>", "<|user|>", "<|end|>", rstrip=True))
    tokenizer.add_special_tokens(special("<|endoftext|>"))
    return tokenizer


def unknown_bpe() -> Tokenizer:
    """Unknown characters, one token for each, and a prefix inside of words."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", continuing_subword_prefix="##"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents(), normalizers.Strip()])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation()])
    tokenizer.train_from_iterator(training_text(), trainers.BpeTrainer(
        vocab_size=420, limit_alphabet=90, special_tokens=["<unk>"], show_progress=False, continuing_subword_prefix="##"))
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    return tokenizer


def bert(cased: bool = False) -> Tokenizer:
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=30))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=not cased)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.train_from_iterator(training_text(), trainers.WordPieceTrainer(vocab_size=480, special_tokens=names,
                                                                             show_progress=False))
    tokenizer.add_tokens([AddedToken("weft", single_word=True), AddedToken("Weaver", normalized=True)])
    if cased:
        tokenizer.post_processor = processors.BertProcessing(("[SEP]", tokenizer.token_to_id("[SEP]")),
                                                             ("[CLS]", tokenizer.token_to_id("[CLS]")))
    else:
        surround(tokenizer, "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", ["[CLS]", "[SEP]"])
    return tokenizer


def bert_cased() -> Tokenizer:
    return bert(cased=True)


def word_level() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKD(), normalizers.Lowercase(), normalizers.StripAccents()])
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(training_text(), trainers.WordLevelTrainer(vocab_size=260, special_tokens=["[UNK]", "[SEP]"],
                                                                             show_progress=False))
    return tokenizer  # no decoder: tokens are joined by spaces


def compiled_rules(rules: str) -> bytes:
    """SentencePiece's compiled form of normalisation rules: those named, or a table of our own."""
    model = io.BytesIO()
    arguments = dict(normalization_rule_name=rules)
    if rules == "own":
        path = "/tmp/heddle-rules.tsv"
        with open(path, "w", encoding="utf-8") as table:
            for source, target in OWN_RULES:
                table.write(f"{' '.join(f'{ord(c):X}' for c in source)}\t{' '.join(f'{ord(c):X}' for c in target)}\n")
        arguments = dict(normalization_rule_tsv=path)
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(["a b c"] * 10), model_writer=model, vocab_size=8,
                                             model_type="char", minloglevel=2, **arguments)
    from sentencepiece import sentencepiece_model_pb2
    proto = sentencepiece_model_pb2.ModelProto()
    proto.ParseFromString(model.getvalue())
    return proto.normalizer_spec.precompiled_charsmap


# Single characters, sequences, beginnings of others, removals.
OWN_RULES = [("\u00a0", " "), ("\u3000", " "), ("\t", " "), ("\n", " "), ("\u200b", ""), ("\u00ad", ""), ("ﬁ", "fi"), ("①", "1"),
             ("½", "1/2"), ("\u212b", "\u00c5"), ("e\u0301", "é"), ("E\u0301", "É"), ("か\u3099", "が"), ("ｶﾞ", "ガ"), ("ｶ", "カ"),
             ("㍿", "株式会社"), ("℡", "TEL"), ("ｆ", "f"), ("ｕ", "u"), ("ｌ", "l"), ("ª", "a"), ("ŉ", "ʼn"), ("…", "..."),
             ("\u0301", "'"), ("क", "k"), ("❤", "<3"), ("\x7f", "")]


def unigram(normalizer, pre_tokenizer, *, byte_fallback: bool = False) -> Tokenizer:
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, pre_tokenizer
    tokenizer.train_from_iterator(training_text(), trainers.UnigramTrainer(
        vocab_size=380, special_tokens=["<pad>", "</s>", "<unk>"], unk_token="<unk>", show_progress=False))
    if byte_fallback:
        learnt = json.loads(tokenizer.to_str())["model"]
        pieces = [tuple(piece) for piece in learnt["vocab"]] + [(f"<0x{byte:02X}>", -12.0) for byte in range(256)]
        tokenizer.model = models.Unigram(pieces, unk_id=learnt["unk_id"], byte_fallback=True)
    return tokenizer


def t5(rules: str = "own") -> Tokenizer:
    tokenizer = unigram(normalizers.Sequence([normalizers.Precompiled(compiled_rules(rules)),
                                              normalizers.Replace(Regex(" {2,}"), " ")]),
                        pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]))
    tokenizer.decoder = decoders.Metaspace()
    surround(tokenizer, "$A </s>", "$A </s> $B </s>", ["</s>"])
    return tokenizer


def albert() -> Tokenizer:
    """A mark at the start of texts only, which what is removed there takes away."""
    tokenizer = unigram(normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC()]),
                        pre_tokenizers.Metaspace(prepend_scheme="first"), byte_fallback=True)
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first")])
    tokenizer.add_tokens(PLAIN_ADDED)
    return tokenizer


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "gpt2": gpt2, "roberta": roberta, "llama3": llama3, "qwen": qwen, "gpt4o": gpt4o, "deepseek": deepseek, "falcon": falcon,
    "bloom": bloom, "neox": neox, "clip": clip, "llama2": llama2, "mistral": mistral, "gemma": gemma, "phi3": phi3,
    "unknown-bpe": unknown_bpe, "bert": bert, "bert-cased": bert_cased, "word-level": word_level, "t5": t5, "albert": albert,
}
