# SPDX-License-Identifier: Apache-2.0
"""Bundles that are small, quick to build and of any weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ballast_worker.bundle.reader import Bundle
from ballast_worker.bundle.writer import pack_bundle


def pack_small(
    path: Path,
    *,
    mebibytes: float = 0.001,
    factor: float = 2.0,
    max_batch: int = 2,
    name: str = "",
    turns: int = 0,
    lines: Sequence[Mapping[str, Any]] = (),
) -> Bundle:
    """`y = x * factor` for rows of four, with ballast weights of so many MiB that the output depends on; over what is there.

    Each turn multiplies two matrices of 256 rows that stay zero, for the work alone; with turns it needs a mebibyte.
    """
    elements = max(4, int(mebibytes * (1 << 20)) // 4)

    def function(parameters, x):
        y = x * parameters["factor"] + parameters["ballast"][0]
        if turns:
            zeros = parameters["ballast"][:65_536].reshape(256, 256) * x[0, 0]
            for _ in range(turns):
                zeros = zeros @ zeros
            y = y + zeros[0, 0]
        return y

    return pack_bundle(
        path,
        name=name or path.name,
        function=function,
        parameters={"factor": np.full(4, factor, np.float32), "ballast": np.zeros(elements, np.float32)},
        inputs=[("x", np.float32, ("batch", 4))],
        batch_dimension="batch",
        max_batch=max_batch,
        output_names=["y"],
        lines=lines,
        overwrite=True,
    )
