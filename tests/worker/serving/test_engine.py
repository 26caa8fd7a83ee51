# SPDX-License-Identifier: Apache-2.0
"""The device thread: answers, coalescing, deadlines, loads, refusals, replacement, failure and the end."""

from __future__ import annotations

import numpy as np


def rows(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, 8)).astype(np.float32)


def test_an_answer_is_what_jax_computes(rig, affine):
    assert rig.add("affine", affine) is None
    for count in (1, 2, 4, 5, 8):
        x = rows(count, count)
        (y,) = rig.submit("affine", x, batch=count).outputs()
        np.testing.assert_allclose(y, affine.expected(x)[0], rtol=1e-6, atol=1e-6)
        assert y.shape == (count, 4)
