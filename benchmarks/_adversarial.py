"""Lines of text that easily break tokenizers."""

from random import Random

PIECES = (
    *(" ", " ", " ", "  ", "   ", " " * 9, "\t", "\r", "\v", "\f", "\n", "\r\n", "\x00", "\x1c"),
    *("\x1f", "\x7f", "\x85", "\xa0", "\u1680", "\u2002", "\u200b", "\u2028", "\u202f", "\u3000"),
    *("e\u0301", "\u0301", " \u0301", "\u0308\u0323", "a\u0323\u0307", "\u1100\u1161\u11a8"),
    *("\U0001f469\u200d\U0001f4bb", "\U0001f1e9\U0001f1ea", "\U0001f44d\U0001f3fd", "\ufe0f"),
    *("שלום", "مرحبا", "\u200f", "\u202e", "\u2066", "日本語", "한국어", "ไทย", "हिन्दी", "Ελλάς"),
    *("</s>", "<pad>", "<s>", "<unk>", "\uf8ff\ue000\uf8ff", "\u2581", "Ġ", "##", "[UNK]"),
    *("'s", "'", "’s", "don't", "I'LL", '"', "„", "“", "»", "—", "–", "...", "…", "!?", "()"),
    *("The", "the", " the", "Straße", "STRASSE", "ﬁ", "ǅ", "İstanbul", "ß", "Ä", "ä", "œ"),
    *("0", "12,50", "1234567890", "½", "²", "Ⅷ", "٣", "1e-9", "www.example.org", "a@b.c", "C++"),
    *("a" * 300, "ä" * 200, "x" * 5_000, "\ue000", "\U0010ffff", "\u00ad", "\ufeff", "\ufffd"),
)
"""White space of all kinds, combining marks, emoji, right-to-left text, control characters, special
tokens, contractions, numbers, very long words."""


def adversarial_lines(count: int, seed: int = 1) -> list[str]:
    """``count`` different mixtures of :data:`PIECES`; the first is empty."""
    random = Random(seed)
    lines = {"": None}
    while len(lines) < count:
        lines["".join(random.choices(PIECES, k=random.randrange(1, 16)))] = None
    return list(lines)
