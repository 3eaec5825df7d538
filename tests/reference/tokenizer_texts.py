"""Texts for the tokenizers of the tests: what they are trained on, and what is hard to encode.

Generated texts follow from texts.json and Philox alone, so that the tests make the same ones (generated_texts.h).
"""

import random

SENTENCES = """The weaver's loom isn't idle; it's been running since 06:45 and we've made 1,234 metres.
They'll say that he'd rather not, but I'm sure you're right: DON'T stop, WE'LL see.
Each heddle lifts one thread, and each thread passes through one heddle only.
for (int i = 0; i < 128; ++i) { sum += x[i] * y[i]; }  // dot product
def warp(threads: list[int]) -> int: return sum(t for t in threads if t > 0)
\tif (a != b && c <= 10) return 3.14159e-2;
Der Weber fährt über die Brücke, während Äpfel und süße Nüsse größer werden.
Le tisserand préfère déjà la forêt, où l'élève naïf a goûté un œuf à Noël.
El niño tejió mañana; ¿dónde está la araña? ¡Qué pingüino!
織機は一本の糸を上げて、布を作る。今日は2024年です。
织布工人每天早上工作，工具很好用。共有三百五十匹布。
베틀은 실을 들어 올린다. 오늘은 날씨가 좋다.
Ткач поднимает нить, и станок работает весь день.
النول يرفع الخيط كل يوم. הנול מרים את החוט.
Great work 🎉🎉 the loom 🧵 is ready 👩‍🏭 to go 🚀, see https://example.org/loom?id=42&x=7.
Numbers 7 42 123 4567 89012 345678 and 9.81, 1e-9, 0xFF, 50%, $19.99, ½ and ² too.""".split("\n")


def made_up_text(lines: int, seed: int) -> str:
    """Sentences of our own, shuffled and varied, so that no outside text is needed."""
    rng = random.Random(seed)
    nouns = "thread loom heddle shuttle pattern cloth weaver spindle fibre colour model gradient token layer".split()
    verbs = "lifts crosses follows doesn't-break holds turns carries measures trains loads".split()
    adverbs = ["quickly", "again", "at once", "twice", "every day", "without a knot", "in 3 steps", "slowly"]
    made = []
    for _ in range(lines):
        if rng.random() < 0.3:
            made.append(rng.choice(SENTENCES))
        else:
            made.append(f"{rng.choice(['The', 'A', 'Our', 'Every'])} {rng.choice(nouns)} {rng.choice(verbs)} the "
                        f"{rng.choice(nouns)} {rng.choice(adverbs)}{rng.choice(['.', '!', '?', ';', ' ...'])}")
    return "".join(line + rng.choice(["\n", "\n    ", "\n\n", "\r\n", " ", "  "]) for line in made)


NASTY = r"""
 |  |   |     |         |\t|\t\t|\n|\n\n|\n\n\n|\r\n|\r\n\r\n|\r|\n\r|\t\n| \n|\n |  \n  \n|\n\t\n\t| \t \t\t \n  a|a |a  |a   b|  a|\na|a\n\nb
\x0b|\x0c|\x0b\x0c x|\x1c\x1d\x1e\x1f|\x85|a\x85b|\xa0|\xa0\xa0a|\u1680x|\u2000\u2001\u2002|a\u2003b|\u2028|\u2029a|\u202f1|\u205f|\u3000|　 文|\u180e|\u200b|a\u200bb|\ufeff|\ufeffabc|\u2060
\x00|\x00\x00a|\x01\x02\x03|\x07bell|\x1b[31mred\x1b[0m|\x7f|\x80\x9f|\xad|\ufffd|\ufffe\uffff|\U0010ffff|\ue000|\ud7ff\ue000
's|'S|'t|'T|'re|'RE|'Re|'ve|'m|'ll|'lL|'d|'D|'x|''|'''|'s's|it's|IT'S|it''s|it'sn't|don't|DON'T|I'LLx|' s|'\ns|o'clock|'tis|'re'|l'été|’s|it’s|'\u017f|a'\u017fb|'ſt|we'Ve|'LL 'll
0|12|123|1234|12345|123456789|1234567890123456789012345| 1| 12 | 1234|1 2|1,234,567.89|3.14|1e10|0x1F|-5|+5|½|¼½¾|²³|①②|Ⅻ|٣٤٥|৪৫|１２３４|一二三|1st|a1b2c3|v2.0.1|12:34:56|50%|$19.99|\U0001d7d8\U0001d7d9
Ä|Ä́|a\u0301|e\u0301te\u0301|\u0301|\u0301a| \u0301|n\u0303o|ﬁ|ﬃx|Å\u212b|ǅ|ß|ẞ|İ|ı|ſ|ς|Ω|ʰ|ªº|\u0e44\u0e17\u0e22|नमस्ते|தமிழ்|العربية|עברית|हिन्दी 123|Việt Cửa|ಠ_ಠ|ꙮ|𝔘𝔫𝔦|𐍈|𓀀𓀁
日本語|日本語 テスト|中文。中文！|，。！？|한국어 띄어쓰기|ｆｕｌｌ　ｗｉｄｔｈ|々〆ヶ|ｶﾞ|\u1112\u1161\u11ab|日本a語1|工具|用工具做工|「引用」
🙂|🙂🙂| 🙂|🙂 a|👩‍👩‍👧|👩🏽‍🚀|🏳️‍🌈|🇩🇪🇫🇷|1️⃣2️⃣|❤️|❤|☃|🧑‍🏭x|a🎉b|🎉\n🎉|©®™|€5|→←|∑∫√|½🙂²
!|!!|!!!!!!|?!|...|…|--|—|-->|#include <x>\n|a.b::c->d|x=[1,2];|{}[]()|((((|((((a| ((((|"quoted"|\\n|\\|C:\\dir\\f|@user #tag|a_b__c|___|*/ /*|<html>|&amp;|`code`|$x$|~~|^|!\n|!\r\n\n|! \n|?\n\na
 qwxz|qwxz| qwxzq|zqxj| zqxj| éè|éè| éèé|aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa|The the THE tHe|CamelCaseWord|snake_case|heddle heddles| the  the   the|\ttab\tthe|(the)|\xa0the|\nthe|"the|-the|_the|the\tthe|the\r\nthe
weft|weft.|wefts|aweft| weft |(weft)|weft weft|weftweft|weft_|weft1|é weft é|éweft|weft-weft|[TOOL]|[TOOL|[[TOOL]]|[TOOL][TOOL]|a[TOOL]b| [TOOL] |[tool]
<|end|>|<|end|>ing|<|end|>in|a<|end|>ing b|<|end|><|end|>|<|end|| <|end|> |<mask>|a <mask>|a   <mask>  b|\n\t<mask>|<mask><mask>| <mask> <mask> |<|sep|>|<|sep|>   a|a  <|sep|>\n\nb|<|sep|> <mask>| <|sep|> <|sep|> |x  <|both|>  y|<|both|> <|both|>|\u3000<|both|>\xa0z|<mask>  <|sep|>  <|both|>|    <mask>|<|sep|>      a
<|endoftext|>|<|endoftext|><|endoftext|>|a<|endoftext|>b| <|endoftext|> |<|endoftext|>\n|<|endoftext|<|endoftext|>|<|endof text|>|<|ENDOFTEXT|>|weft<|endoftext|>weft|<|eot_id|>|<|start_header_id|>user<|end_header_id|>\n\nHi!<|eot_id|>|<|begin_of_text|>a|it's<|eot_id|>'s
"""


def nasty_cases() -> list[str]:
    # A pipe that belongs to a token is kept by splitting around the tokens' own "<|" and "|>" spellings.
    hidden = NASTY.strip("\n").replace("<|", "\ue100").replace("|>", "\ue101")
    lines = [line.replace("\\\\", "\ue102") for line in hidden.split("\n")]
    pieces = [piece for line in lines for piece in line.split("|")]

    def unescape(piece: str) -> str:
        text = piece.encode("ascii", "backslashreplace").decode("unicode_escape")
        return text.replace("\ue100", "<|").replace("\ue101", "|>").replace("\ue102", "\\")

    cases = ["", *map(unescape, pieces), "supercalifragilistic" * 40, "ab" * 500, "9" * 300, " " * 130, "\n" * 70 + "x"]
    rng = random.Random(7)
    short = [case for case in cases if 0 < len(case) < 30]
    cases += ["".join(rng.choice(short) + rng.choice(["", "", " ", "\n"]) for _ in range(rng.randint(2, 7)))
              for _ in range(120)]
    return list(dict.fromkeys(cases))


def philox(key: int, counter: int, counter_high: int = 0) -> int:
    """The low 64 bits of a block of Philox 4x32-10, as base/rng.h gives them."""
    mask = 0xFFFFFFFF
    k0, k1 = key & mask, key >> 32
    c0, c1, c2, c3 = counter & mask, counter >> 32, counter_high & mask, counter_high >> 32
    for _ in range(10):
        p0, p1 = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & mask, (p0 >> 32) ^ c3 ^ k1, p0 & mask
        k0, k1 = (k0 + 0x9E3779B9) & mask, (k1 + 0xBB67AE85) & mask
    return c1 << 32 | c0


# What generated texts are made of. Spaces and single letters are there several times, for their weight.
PIECES = [
    *"the loom heddle weaver's isn't DON'T thread Thread THREAD weft unbreakable ing s ed a b I x".split(" "),
    *[" "] * 16, "  ", "    ", "\t", "\n", "\n\n", "\r\n", "\u00a0", "\u3000", "\u2028", "\u200b", "\ufeff",
    ".", ",", "!", "?", "...", "'", "'s", "'LL", "\u2019s", "-", "--", "_", "(", ")[", "{}", "#", "@", "<", ">", "/", "\\", "$9.99",
    "0", "7", "42", "123", "4567", "89012", "1,234", "\u00bd", "\u00b2", "\u0663\u0664", "\u2167", "\u2460",
    "é", "e\u0301", "É", "E\u0301", "ü", "ß", "İ", "Σ", "ς", "ſ", "ﬁ", "Å", "\u212b", "ŉ", "Ǆ", "ª",
    "Ткач", "нить", "ΑΒΓ", "النول", "הנול", "हिन्दी", "क्ष", "ไทย", "தமிழ்", "Việt",
    "日本", "語", "中文", "工具", "。", "「", "カ", "ｶﾞ", "か\u3099", "한국", "\u1112\u1161\u11ab", "ｆｕｌｌ",
    "🙂", "👩\u200d🏭", "🏳️\u200d🌈", "🇩🇪", "1️⃣", "❤️", "𝔘", "㍿", "①", "℡",
    "\x00", "\x01", "\x0b", "\x1b", "\x7f", "\x85", "\xad", "\u0378", "\ufffd", "\U0010ffff",
    "<s>", "</s>", "<unk>", "<pad>", "<|endoftext|>", "<|end|>", "<|end|>ing", "<mask>", "[MASK]", "[SEP]", "[UNK]", "[TOOL]",
    "<|sep|>", "<|both|>", "<|user|>", "<0x0A>", "<0xE2>", "\u2581", "\u2581the", "Ġ", "##ing", "</w>",
]
RANGES = [
    (0x20, 0x7F), (0x20, 0x7F), (0xA0, 0x250), (0x300, 0x370), (0x370, 0x590), (0x590, 0x780), (0x900, 0xE00), (0xE00, 0x1000),
    (0x1100, 0x1200), (0x1E00, 0x2000), (0x2000, 0x2070), (0x2070, 0x2500), (0x2600, 0x27C0), (0x3000, 0x3400), (0x4E00, 0x9FFF),
    (0xA700, 0xA800), (0xAC00, 0xD7A4), (0xF900, 0xFB50), (0xFE00, 0xFFFE), (0x10400, 0x10500), (0x11000, 0x11300),
    (0x1D400, 0x1D800), (0x1F000, 0x1F700), (0x20000, 0x20100), (0x2F800, 0x2FA20), (0xE0000, 0xE0200),
]
SEED, COUNT, LONGEST = 20261117, 10000, 14


def recipe() -> dict:
    return dict(seed=SEED, count=COUNT, longest=LONGEST, pieces=PIECES, ranges=RANGES)


def generated_text(index: int, pieces: list[str] = PIECES) -> str:
    """Of up to LONGEST parts three of four are pieces, the others characters of a range."""
    key = philox(SEED, index, 0x6865646C65)
    text = ""
    for part in range(1 + philox(key, 0) % LONGEST):
        value = philox(key, part + 1)
        choice, rest = value % 4, value >> 8
        if choice < 3:
            text += pieces[rest % len(pieces)]
        else:
            begin, end = RANGES[rest % len(RANGES)]
            text += chr(begin + (rest >> 24) % (end - begin))
    return text
