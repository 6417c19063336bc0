"""The texts whose ids are compared with llama.cpp's: written for this project, and drawn from seeded alphabets."""

from __future__ import annotations

import random

HAND = [
    "", " ", "  ", "\n", "\n\n", " \n ", "\t", "\r\n", "a", " a", "a ", "Hello world", "    .", "   leading",
    "trailing   ", "multiple   spaces   inside", "\n  \n   \n", "mixed \t \n white \r\n space", "\t\ttabs\t\tin\tside",
    "x\u00a0y\u3000z\u2003w\u200bq", "\u2028line\u2029para", "\x85nel\x0bvt\x0cff", "    four\n        eight\n",
    "word  \n  word", "\r\r\n\n\r", " " * 33, "\n" * 20, "ab\n\n\ncd \n ef",
    "1234567890 12 3 4567", "3.14159e-10 1,234,567.89 0x7fff", "12345678901234567890123456789", "a1b2c3d4 1a2b3c",
    "v1.2.3-beta.4+build5", "10 000 000", "½ ⅔ Ⅷ ④ ² ³ ₂", "٠١٢٣٤٥٦٧٨٩", "१२३४५६७", "𝟘𝟙𝟚𝟛", "1/2 3-4 5+6=11", "0" * 40,
    "def f(x):\n    return x**2  # comment\n\n\n\tif True:\n\t\tpass\n",
    "for (int i=0;i<10;++i){ a[i] = b[i]<<2; }\r\n\r\nreturn;\n", "SELECT * FROM t WHERE a='b' AND c>=10;",
    "class A(B):\n    '''Doc.'''\n    x: int = 0\n\n    def __init__(self, *, k=None) -> None:\n        ...\n",
    '{"key": [1, 2.5, null, true], "s": "a\\nb"}', '<html><body class="x">text</body></html>',
    "a/b/c//d path\\to\\file",
    "http://example.org/a?b=c&d=e#f user@example.org", "| a | b |\n|---|---|\n| 1 | 2 |\n",
    "### Heading\n\n- item\n* item",
    "$var ${x} @dec #tag", "~`^|<>+=", "!!!???...,,,;;;:::", "_under_score__ camelCaseWord XMLHttpRequest iPhone",
    "Hello, World! it's I'll you've DON'T we'RE can't", "'s 't 're 'S 'T 'RE 'Ll '",
    "e'sa e'ta e'rea e'Sa e'TA E'Rea a'la a'ra A'sT I'LLx 'sa 'TA", "“quotes” ‘single’ —dash– …",
    "caf\u00e9 na\u00efve ÄpfelÖl straßeSTRASSE ÉcoleÉTÉ",
    "e\u0301a\u0308 o\u0302 n\u0303 a\u0300\u0301\u0302b", "tiếng Việt có dấu",
    "日本語のテキスト、漢字とカナ。", "中文测试，你好世界！123個", "한국어 텍스트 123", "русский текст с Ударением ё",
    "Ελληνικά κείμενο", "العربية نص ١٢٣ ٱلْعَرَبِيَّة", "עברית טקסט", "हिन्दी पाठ १२३ नमस्ते", "ไทย ข้อความ ำ", "வணக்கம்",
    "ქართული ᲥᲐᲠᲗᲣᲚᲘ Հայերեն", "አማርኛ ፩፪፫ བོད་ཡིག", "ꙮ ᏣᎳᎩ ǅ ǈ ʰʲ ª º", "İstanbul ıI", "ﬁ ligature 𝕏𝕐",
    "👩‍👩‍👧‍👦 family 🚀🚀 ok", "🏳️‍🌈 flag 🇩🇪 👍🏽", "€ £ ¥ ₿ $100 100%",
    "zero\u200dwidth\u2060er soft\u00adhyphen \ufeffBOM", "\ufffd\ufffd",
    "\u0000\u0001\u001f\u007f", "\ue000 private \uf8ff \U0010fffd", "x" * 50, "ab " * 20, "haha" * 12, "....." * 9,
]  # fmt: skip
CONTROL = [
    "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", "a<|endoftext|>b <|im_end|>", "<|im_start|>",
    "<|im_end|",
    '<tool_call>{"a": 1}</tool_call> x', "<|fim_prefix|>def f():<|fim_suffix|>pass<|fim_middle|>", "  <|im_end|>  text",
    "<repo_name>x<file_sep>y<reponame> <jupyter_code>", "<<|im_end|>>", "<|im_<|im_end|>end|>", "[PAD151665]",
    "<|file_sep|><|repo_name|>\n", "<|IM_END|>", "<|im_end|><|im_end|>\n\n<|im_end|>",
]  # fmt: skip
ALPHABETS = [
    "abcdefXYZ ", "  \n\t\r", "0123456789", ".,!?'\"-_()[]{}<>/\\|@#$%^&*+=~`:;", "éüßñçÉÜ", "日本語漢字カナ", "한국어",
    "абвГДЕ", "αβΓ", "ابجد", "हिन्दी", "🚀😀👩‍👧", "\u0301\u0308", "½²Ⅷ", "\u00a0\u3000\u2003", "'s't'LL",
]  # fmt: skip


def texts(num_random: int) -> list[str]:
    """HAND, then `num_random` short texts that mix up to four alphabets."""
    draw = random.Random(20)
    made = list(HAND)
    for _ in range(num_random):
        chosen = [*draw.sample(ALPHABETS, draw.randint(1, 4)), ALPHABETS[0]]
        made.append("".join(draw.choice(draw.choice(chosen)) for _ in range(draw.randint(1, 24))))
    return made
