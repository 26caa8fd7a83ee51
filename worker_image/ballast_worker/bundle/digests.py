# SPDX-License-Identifier: Apache-2.0
"""How files and weights are identified.

The digest of weights is a hash over one line per tensor, so that tensors can be hashed in parallel while they are read
and no byte is read twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from ballast_worker.bundle.layout import TensorSpec

PREFIX = "sha256:"


def bytes_digest(data: bytes) -> str:
    """`sha256:` and the hex digits of the SHA-256 of `data`, as `sha256sum` prints them."""
    return PREFIX + hashlib.sha256(data).hexdigest()


def tensor_line(spec: TensorSpec, content: bytes) -> bytes:
    r"""The canonical line of one tensor: `name NUL dtype NUL shape NUL content LF`.

    Args:
        spec: The tensor; its shape is written as decimal sizes with commas between, empty for a scalar.
        content: The 32 bytes of the SHA-256 of its elements; written as 64 hex digits.
    """
    shape = ",".join(map(str, spec.shape))
    return b"\0".join([spec.name.encode(), spec.dtype.encode(), shape.encode(), content.hex().encode()]) + b"\n"


def weights_digest(specs: Sequence[TensorSpec], contents: Iterable[bytes]) -> str:
    """The digest of weights: SHA-256 over the `tensor_line` of each tensor in argument order.

    Args:
        specs: Tensors in argument order.
        contents: For each the 32 bytes of the SHA-256 of its elements.

    Raises:
        ValueError: Not one content digest for each tensor.
    """
    tree = hashlib.sha256()
    for spec, content in zip(specs, contents, strict=True):
        tree.update(tensor_line(spec, content))
    return PREFIX + tree.hexdigest()
