# SPDX-License-Identifier: Apache-2.0
"""Packing any JAX function and its parameters as a bundle, the same bytes for the same inputs."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ballast_worker.bundle.reader import Bundle


def pack_bundle(
    path: str | os.PathLike[str],
    *,
    name: str,
    function: Callable[..., Any],
    parameters: Any,
    inputs: Sequence[tuple[str, Any, Sequence[int | str]]],
    batch_dimension: str | None = None,
    programs: Sequence[Mapping[str, int]] | None = None,
    max_batch: int | None = None,
    platforms: Sequence[str] = ("cpu", "cuda"),
    output_names: Sequence[str] | None = None,
    description: str = "",
    overwrite: bool = False,
) -> Bundle:
    """Pack `function(parameters, *inputs)` as a bundle at `path`."""
    raise NotImplementedError
