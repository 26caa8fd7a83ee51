# SPDX-License-Identifier: Apache-2.0
"""The models that are called, and what they are asked: `python -m benchmarks.requests.models FOLDER` packs them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, Final

import numpy as np

WIDTH: Final = 384
HIDDEN: Final = 1536
NAMES: Final = ("m0", "m1", "m2")
VECTORS: Final = 64
TOLERANCE: Final = 2e-4
"""Largest difference of an answer from one that is computed with 64 bits."""

Row = np.ndarray[tuple[int, ...], np.dtype[np.float32]]


def function(parameters: Any, x: Any) -> Any:
    """tanh(x @ w1 + b1) @ w2 for x of shape [1, 384]."""
    import jax.numpy as jnp  # noqa: PLC0415 - what makes the requests needs no JAX

    return jnp.tanh(x @ parameters["w1"] + parameters["b1"]) @ parameters["w2"]


def parameters(name: str) -> dict[str, Row]:
    """Weights of a model, float32: w1 [384, 1536], b1 [1536], w2 [1536, 384]; 4.7 MB that differ from model to model."""
    random = np.random.default_rng(NAMES.index(name))
    shapes = {"w1": (WIDTH, HIDDEN), "b1": (HIDDEN,), "w2": (HIDDEN, WIDTH)}
    return {key: random.standard_normal(shape, np.float32) / np.float32(40) for key, shape in shapes.items()}


def questions() -> list[tuple[str, Row, Row]]:
    """Every pair of a vector and a model, so that any stretch of them is spread evenly over the models.

    Returns:
        The model's name, its input of shape [384], float32, and the right answer, likewise.
    """
    vectors = np.random.default_rng(len(NAMES)).standard_normal((VECTORS, WIDTH), np.float32)
    answers = {}
    for name in NAMES:
        wide = {key: value.astype(np.float64) for key, value in parameters(name).items()}
        answers[name] = np.tanh(vectors @ wide["w1"] + wide["b1"]) @ wide["w2"]
    return [(name, vectors[row], answers[name][row].astype(np.float32)) for row in range(VECTORS) for name in NAMES]


def right(answer: Row, expected: Row) -> bool:
    """Whether an answer is the right one."""
    return answer.shape == expected.shape and bool(np.allclose(answer, expected, rtol=0, atol=TOLERANCE))


def pack(folder: Path) -> None:
    """Write a bundle of each model into a folder, under its name. Each takes one row: no two requests share an execution."""
    from ballast_worker.bundle.writer import pack_bundle  # noqa: PLC0415 - imports JAX

    for name in NAMES:
        pack_bundle(
            folder / name,
            name=name,
            function=function,
            parameters=parameters(name),
            inputs=[("x", np.float32, (1, WIDTH))],
            platforms=["cpu"],
            output_names=["y"],
        )


if __name__ == "__main__":
    pack(Path(sys.argv[1]))
