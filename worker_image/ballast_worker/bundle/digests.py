# SPDX-License-Identifier: Apache-2.0
"""How files and weights are identified.

Files by SHA-256, as `sha256sum` prints it. Weights by BLAKE3, which a processor computes several times as fast, over one
line per tensor: so tensors can be hashed in parallel while they are read, and no byte is read twice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from blake3 import blake3

from ballast_worker.bundle.layout import TensorSpec

FILE_PREFIX = "sha256:"
WEIGHTS_PREFIX = "blake3:"


def bytes_digest(data: bytes) -> str:
    """`sha256:` and the hex digits of the SHA-256 of `data`, as `sha256sum` prints them."""
    return FILE_PREFIX + hashlib.sha256(data).hexdigest()


def tensor_line(spec: TensorSpec, content: bytes) -> bytes:
    r"""The canonical line of one tensor: `name NUL dtype NUL shape NUL content LF`.

    Args:
        spec: The tensor; its shape is written as decimal sizes with commas between, empty for a scalar.
        content: The 32 bytes of the BLAKE3 of its elements; written as 64 hex digits.
    """
    shape = ",".join(map(str, spec.shape))
    return b"\0".join([spec.name.encode(), spec.dtype.encode(), shape.encode(), content.hex().encode()]) + b"\n"


def weights_digest(specs: Sequence[TensorSpec], contents: Iterable[bytes]) -> str:
    """The digest of weights: `blake3:` and the hex digits of the BLAKE3 over the `tensor_line` of each tensor in argument order.

    Args:
        specs: Tensors in argument order.
        contents: For each the 32 bytes of the BLAKE3 of its elements.

    Raises:
        ValueError: Not one content digest for each tensor.
    """
    tree = blake3()
    for spec, content in zip(specs, contents, strict=True):
        tree.update(tensor_line(spec, content))
    return WEIGHTS_PREFIX + tree.hexdigest()
