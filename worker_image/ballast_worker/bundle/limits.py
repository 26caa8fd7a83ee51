# SPDX-License-Identifier: Apache-2.0
"""What tensors may be, in a manifest, in a safetensors file and where parameters are packed alike."""

from __future__ import annotations

MAX_TENSORS = 65536
MAX_RANK = 16
MAX_BYTES = 2**50
"""Bytes that any size may state: one pebibyte."""


def tensor_name(name: str) -> str:
    """Check the name of a tensor: printable, so that it can stand in logs, and unambiguous in the weights digest.

    Raises:
        ValueError: Empty, longer than 512 characters, or with characters that cannot be printed.
    """
    if not name or len(name) > 512 or not name.isprintable():
        raise ValueError("a tensor's name is 1 to 512 printable characters")
    return name
