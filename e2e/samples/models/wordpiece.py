# SPDX-License-Identifier: Apache-2.0
"""Text to token ids for BERT models, the client's half of a sentence embedding: the standard library alone."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

PADDING, UNKNOWN, START, END = "[PAD]", "[UNK]", "[CLS]", "[SEP]"
MAX_WORD = 100
"""Characters; a longer word is unknown as a whole."""

_IDEOGRAPHS = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F), (0x2B920, 0x2CEAF),
    (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip


_INVISIBLE = frozenset({"Cc", "Cf", "Co", "Cs"})
"""Categories that are dropped. Unassigned characters stay: which they are changes with the release of Unicode."""


class WordPiece:
    """An uncased BERT tokenizer. Text is data: `[SEP]` typed by a user is five ordinary tokens, never the special one."""

    def __init__(self, vocabulary: Iterable[str]) -> None:
        """Take the vocabulary, one token per line in the order of their ids.

        Raises:
            ValueError: A special token is missing.
        """
        self._ids = {token: index for index, token in enumerate(vocabulary)}
        if missing := [token for token in (PADDING, UNKNOWN, START, END) if token not in self._ids]:
            raise ValueError(f"the vocabulary lacks {', '.join(missing)}")

    @classmethod
    def from_file(cls, path: str | Path) -> WordPiece:
        """Read a `vocab.txt`."""
        return cls(Path(path).read_text(encoding="utf-8").splitlines())

    def encode(self, text: str, *, length: int) -> tuple[list[int], list[int]]:
        """Token ids and attention mask of one text, both exactly `length` long; longer texts are cut.

        Raises:
            ValueError: `length` is below 2, which leaves no room for start and end.
        """
        if length < 2:
            raise ValueError(f"length {length}; at least 2")
        ids = [self._ids[START], *self.token_ids(text)[: length - 2], self._ids[END]]
        padding = length - len(ids)
        return ids + [self._ids[PADDING]] * padding, [1] * len(ids) + [0] * padding

    def encode_batch(
        self, texts: Sequence[str], *, lengths: Sequence[int] = (32, 128)
    ) -> tuple[list[list[int]], list[list[int]]]:
        """As `encode` for several texts, at the smallest of `lengths` that holds the longest, else at the largest."""
        longest = max((len(self.token_ids(text)) + 2 for text in texts), default=2)
        length = next((size for size in sorted(lengths) if size >= longest), max(lengths))
        pairs = [self.encode(text, length=length) for text in texts]
        return [ids for ids, _ in pairs], [mask for _, mask in pairs]

    def token_ids(self, text: str) -> list[int]:
        """Ids of the tokens of a text, without start and end."""
        return [token for word in _words(text) for token in self._pieces(word)]

    def _pieces(self, word: str) -> list[int]:
        if len(word) > MAX_WORD:
            return [self._ids[UNKNOWN]]
        pieces, start = [], 0
        while start < len(word):
            prefix = "##" if start else ""
            found = next((stop for stop in range(len(word), start, -1) if prefix + word[start:stop] in self._ids), None)
            if found is None:
                return [self._ids[UNKNOWN]]
            pieces.append(self._ids[prefix + word[start:found]])
            start = found
        return pieces


def _words(text: str) -> Iterator[str]:
    word = ""
    for character in _normalised(text):
        if character.isspace() or _is_punctuation(character):
            if word:
                yield word
            word = ""
            if not character.isspace():
                yield character
        else:
            word += character
    if word:
        yield word


def _normalised(text: str) -> str:
    cleaned = []
    for character in text:
        if character in "\t\n\r":
            cleaned.append(" ")
        elif character == "\ufffd" or unicodedata.category(character) in _INVISIBLE:
            continue
        elif character.isspace():
            cleaned.append(" ")
        elif any(low <= ord(character) <= high for low, high in _IDEOGRAPHS):
            cleaned.append(f" {character} ")
        else:
            cleaned.append(character)
    plain = (c for c in unicodedata.normalize("NFD", "".join(cleaned)) if unicodedata.category(c) != "Mn")
    return "".join(character.lower() for character in plain)  # one by one: the end of a word changes no letter


def _is_punctuation(character: str) -> bool:
    return (character.isascii() and character.isprintable() and not character.isalnum() and character != " ") or (
        unicodedata.category(character).startswith("P")
    )
