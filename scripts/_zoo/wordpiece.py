"""The tokenizer of BERT: clean, lower-case, split at blanks and punctuation, then the longest known pieces."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping

LONGEST_WORD = 100
UNKNOWN, START, END = "[UNK]", "[CLS]", "[SEP]"
CJK = (
    *((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F)),
    *((0x2B920, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F)),
)


def vocabulary(text: str) -> dict[str, int]:
    """Piece -> id, from a ``vocab.txt``."""
    return {piece: number for number, piece in enumerate(text.splitlines())}


def encode(text: str, known: Mapping[str, int], longest: int) -> list[int]:
    """At most ``longest`` ids, those of start and end included."""
    ids = [known[piece] for word in words(text) for piece in pieces(word, known)]
    return [known[START], *ids[: longest - 2], known[END]]


def words(text: str) -> Iterator[str]:
    """Lower-case words and single punctuation marks, accents removed."""
    clean = "".join(_cleaned(character) for character in text)
    plain = "".join(c for c in unicodedata.normalize("NFD", clean) if unicodedata.category(c) != "Mn")
    for word in plain.lower().split():
        start = 0
        for at, character in enumerate(word):
            if _is_punctuation(character):
                if start < at:
                    yield word[start:at]
                yield character
                start = at + 1
        if start < len(word):
            yield word[start:]


def pieces(word: str, known: Mapping[str, int]) -> list[str]:
    """The longest known prefix, again and again; one unknown piece where that fails."""
    if len(word) > LONGEST_WORD:
        return [UNKNOWN]
    found, start = [], 0
    while start < len(word):
        mark = "##" if start else ""
        fitting = (end for end in range(len(word), start, -1) if mark + word[start:end] in known)
        end = next(fitting, None)
        if end is None:
            return [UNKNOWN]
        found.append(mark + word[start:end])
        start = end
    return found


def _cleaned(character: str) -> str:
    """Blanks as one kind, control characters gone, room around Chinese characters."""
    if character in "\t\n\r" or unicodedata.category(character) == "Zs":
        return " "
    if character in "\0\ufffd" or unicodedata.category(character).startswith("C"):
        return ""
    return f" {character} " if any(low <= ord(character) <= high for low, high in CJK) else character


def _is_punctuation(character: str) -> bool:
    """Everything of ASCII that is neither letter, digit nor blank, and what Unicode calls punctuation."""
    if character.isascii():
        return character.isprintable() and not character.isalnum() and character != " "
    return unicodedata.category(character).startswith("P")
