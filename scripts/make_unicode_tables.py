#!/usr/bin/env python3
"""Writes the tables (*.inc) of src/tokenizer/unicode, the only Unicode data of Heddle.

    python3 -m venv .venv-unicode
    .venv-unicode/bin/pip install unicodedataplus==16.0.0.post1 tokenizers==0.23.3
    .venv-unicode/bin/python scripts/make_unicode_tables.py

Categories and boundaries of graphemes are those of Unicode 16, which patterns of the reference library have. Its other
parts come from older versions of Unicode (decompositions 9.0, what counts as punctuation or as removable 8.0), and ids
are equal only with the same: what it does with each code point is asked of the library itself.
"""

from pathlib import Path

import unicodedataplus as unicode
from tokenizers import Regex, normalizers, pre_tokenizers

FOLDER = Path(__file__).resolve().parent.parent / "src" / "tokenizer" / "unicode"
POINTS = [point for point in range(0x110000) if not 0xD800 <= point < 0xE000]

CATEGORIES = ["Cn", "Lu", "Ll", "Lt", "Lm", "Lo", "Mn", "Mc", "Me", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf",
              "Po", "Sm", "Sc", "Sk", "So", "Zs", "Zl", "Zp", "Cc", "Cf", "Cs", "Co"]
BREAKS = ["Other", "CR", "LF", "Control", "Extend", "ZWJ", "Regional_Indicator", "Prepend", "SpacingMark", "L", "V", "T",
          "LV", "LVT"]
CONJUNCTS = ["None", "Consonant", "Extend", "Linker"]
NORMALIZATION = (9, 0)  # the version whose decompositions the library has


def is_removed_by(normalizer):
    return lambda text: normalizer.normalize_str(text) == ""


def is_matched_by(splitter):
    return lambda text: splitter.pre_tokenize_str(text) == []


def bert(**flags):
    return normalizers.BertNormalizer(**dict(clean_text=False, handle_chinese_chars=False, strip_accents=False,
                                             lowercase=False) | flags)


# In the order of the bits of `CharFlag` in characters.h.
FLAGS = [
    is_matched_by(pre_tokenizers.Split(Regex(r"\w"), "removed")),
    lambda text, whitespace=pre_tokenizers.Whitespace(): len(whitespace.pre_tokenize_str(f"a{text}a")) == 1,
    is_matched_by(pre_tokenizers.Punctuation("removed")),
    is_removed_by(normalizers.StripAccents()),
    is_removed_by(bert(strip_accents=True)),
    is_removed_by(bert(clean_text=True)),
    lambda text: bool(unicode.is_extended_pictographic(text)),
]


def properties(point):
    text = chr(point)
    value = CATEGORIES.index(unicode.category(text))
    value |= BREAKS.index(unicode.grapheme_cluster_break(text)) << 5
    value |= CONJUNCTS.index(unicode.indic_conjunct_break(text)) << 9
    for bit, test in enumerate(FLAGS):
        value |= test(text) << (11 + bit)
    return value


def runs(value_of):
    """(start, value) of each run of code points with one value."""
    last, found = None, []
    for point in POINTS:
        value = value_of(point)
        if value != last:
            found += [point, value]
            last = value
    return found


def combining_class(point):
    return unicode.combining(chr(point)) if is_old_enough(point) else 0


def is_old_enough(point):
    age = unicode.age(chr(point))
    return age not in (None, "", "Unassigned", "NA") and tuple(map(int, age.split("."))) <= NORMALIZATION


def is_hangul_syllable(point):
    return 0xAC00 <= point < 0xD7A4


def decompositions():
    """For each code point: itself, kind and length (kind 0: canonical, 1: canonical and never composed, 2: compatible),
    then what it is replaced by in one step."""
    found = []
    for point in POINTS:
        text = chr(point)
        parts = unicode.decomposition(text).split()
        if not parts or not is_old_enough(point) or is_hangul_syllable(point):
            continue
        compatible = parts[0].startswith("<")
        codes = [int(part, 16) for part in (parts[1:] if compatible else parts)]
        composes = unicode.normalize("NFC", text) == text
        kind = 2 if compatible else 0 if composes else 1
        found += [point, kind << 8 | len(codes), *codes]
    return found


def lowercase():
    lower, found = normalizers.Lowercase(), []
    for point in POINTS:
        mapped = lower.normalize_str(chr(point))
        if mapped != chr(point):
            found += [point, len(mapped), *map(ord, mapped)]
    return found


def check_forms():
    """What we compute of the table is what the library does, as far as single code points show."""
    for form in ("NFD", "NFKD", "NFC", "NFKC"):
        theirs = getattr(normalizers, form)()
        for point in POINTS:
            expected = unicode.normalize(form, chr(point)) if is_old_enough(point) else chr(point)
            if theirs.normalize_str(chr(point)) != expected:
                raise SystemExit(f"{form} of U+{point:04X} is not that of Unicode {NORMALIZATION}")


def array(name, comment, numbers):
    lines, line = [], "   "
    for number in numbers:
        text = f" {number}," if number < 10 else f" {number:#x},"
        if len(line) + len(text) > 100:
            lines.append(line)
            line = "   "
        line += text
    lines.append(line)
    return f"// {comment}\nconstexpr std::uint32_t {name}[] = {{\n" + "\n".join(lines) + "\n};\n"


def write(name, arrays):
    path = FOLDER / name
    path.write_text("\n".join(["// Made by scripts/make_unicode_tables.py; do not edit.\n", *arrays]), encoding="utf-8")
    print(f"{name}: {path.stat().st_size} bytes, Unicode {unicode.unidata_version}")


def main():
    check_forms()
    write("character_tables.inc", [
        array("kPropertyRuns", "Start of each run of code points with equal properties, and these.", runs(properties)),
        array("kLowercase", "Code point, length, replacement.", lowercase())])
    write("normal_form_tables.inc", [
        array("kClassRuns", "Start of each run of code points of one combining class, and this.", runs(combining_class)),
        array("kDecompositions", "Code point, kind << 8 | length, replacement.", decompositions())])


if __name__ == "__main__":
    main()
