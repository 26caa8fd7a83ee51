# SPDX-License-Identifier: Apache-2.0
"""The tokenizer against ids that the published one gives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from e2e.samples.models.wordpiece import WordPiece


@pytest.fixture(scope="module")
def tokenizer(vocabulary):
    return WordPiece(vocabulary)


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("The quick brown fox jumps over the lazy dog.", [1996, 4248, 2829, 4419, 14523, 2058, 1996, 13971, 3899, 1012]),
        (
            "Ballast keeps 3,141 models on one GPU; isn't that neat?",
            [28030, 7906, 1017, 1010, 15471, 4275, 2006, 2028, 14246, 2226, 1025, 3475, 1005, 1056, 2008, 15708, 1029],
        ),
        (
            "Überraschung! 東京 tower — naïve café Σίσυφος",
            [19169, 8180, 20760, 3070, 999, 1879, 1755, 3578, 1517, 15743, 7668, 1173, 18199, 29733, 29735, 29736, 15297],
        ),
        (
            "a" * 120 + " pneumonoultramicroscopicsilicovolcanoconiosis\u200b",
            [100, 1052, 2638, 2819, 17175, 11314, 6444, 2594, 7352, 26461, 27572, 11261, 6767, 15472, 6761, 8663, 10735, 2483],
        ),
        ("", []),
        ("\t\n \u3000", []),
        ("\0\x85\ufffd", []),
    ],
)  # fmt: skip
def test_ids_are_those_of_the_published_tokenizer(tokenizer, text, ids):
    assert tokenizer.token_ids(text) == ids


def test_special_tokens_in_a_text_are_ordinary_text(tokenizer):
    assert not {100, 101, 102, 0} & set(tokenizer.token_ids("[SEP] [CLS] [PAD] [UNK]"))


def test_texts_are_padded_and_cut_to_the_length(tokenizer):
    ids, mask = tokenizer.encode("hello world", length=6)
    assert (ids, mask) == ([101, 7592, 2088, 102, 0, 0], [1, 1, 1, 1, 0, 0])
    ids, mask = tokenizer.encode("hello world " * 50, length=6)
    assert (ids[0], ids[-1], mask) == (101, 102, [1] * 6)
    with pytest.raises(ValueError, match="at least 2"):
        tokenizer.encode("hello", length=1)


def test_batches_take_the_smallest_length_that_holds_them(tokenizer):
    assert len(tokenizer.encode_batch(["hello"])[0][0]) == 32
    assert [len(row) for row in tokenizer.encode_batch(["hello", "hello " * 31])[0]] == [128, 128]
    assert len(tokenizer.encode_batch(["hello " * 500])[0][0]) == 128
    assert tokenizer.encode_batch([]) == ([], [])


@given(st.text(max_size=60))
def test_any_text_has_ids_in_the_vocabulary(tokenizer, vocabulary, text):
    ids, mask = tokenizer.encode(text, length=16)
    assert len(ids) == len(mask) == 16
    assert all(0 <= token < len(vocabulary) for token in ids)


def test_a_vocabulary_without_special_tokens_is_refused():
    with pytest.raises(ValueError, match=r"lacks \[PAD\], \[UNK\]"):
        WordPiece(["[CLS]", "[SEP]", "a"])


def test_a_vocabulary_is_read_from_a_file(tmp_path, tokenizer, vocabulary):
    (tmp_path / "vocab.txt").write_text("\n".join(vocabulary), encoding="utf-8")
    assert WordPiece.from_file(tmp_path / "vocab.txt").token_ids("hello") == tokenizer.token_ids("hello")
