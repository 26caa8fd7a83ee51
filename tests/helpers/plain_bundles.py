# SPDX-License-Identifier: Apache-2.0
"""Bundles with real weights and a function that nobody can run: for whoever only moves bytes, without starting JAX."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import yaml
from blake3 import blake3

from ballast_worker.bundle.digests import bytes_digest, weights_digest
from ballast_worker.bundle.errors import BundleError
from ballast_worker.bundle.layout import TensorSpec
from ballast_worker.bundle.reader import Bundle, open_bundle
from ballast_worker.bundle.safetensors import build_header

FUNCTION = b"no function"


def write_bundle(path: Path, tensors: Mapping[str, np.ndarray], *, name: str = "plain") -> Bundle:
    """Write a bundle with these weights at `path`, over one that is there, each file by rename."""
    path.mkdir(parents=True, exist_ok=True)
    specs = [TensorSpec(key, value.dtype.name, value.shape) for key, value in tensors.items()]
    contents = [np.ascontiguousarray(value).tobytes() for value in tensors.values()]
    weights = build_header(specs) + b"".join(contents)
    manifest = {
        "format": "ballast.dev/bundle/v1",
        "name": name,
        "function": {
            "file": "function.jaxexport",
            "digest": bytes_digest(FUNCTION),
            "bytes": len(FUNCTION),
            "platforms": ["cpu"],
            "jaxVersion": "0.10.2",
            "callingConvention": 10,
        },
        "weights": {
            "file": "weights.safetensors",
            "digest": weights_digest(specs, [blake3(content).digest() for content in contents]),
            "bytes": len(weights),
            "tensors": list(tensors),
        },
        "outputs": [{"name": "y", "dtype": "float32", "shape": [1]}],
        "inputs": [],
    }
    for file, data in (
        ("function.jaxexport", FUNCTION),
        ("weights.safetensors", weights),
        ("manifest.yaml", yaml.safe_dump(manifest, sort_keys=False).encode()),
    ):
        aside = path / f".{file}.new"
        aside.write_bytes(data)
        aside.rename(path / file)
    return open_bundle(path)


def random_bundle(path: Path, nbytes: int, *, seed: int = 0, pieces: int = 1, name: str = "plain") -> Bundle:
    """A bundle whose layout takes `nbytes` (a multiple of 256 times `pieces`), in so many equal tensors."""
    random = np.random.default_rng(seed)
    each = nbytes // pieces
    assert nbytes % (256 * pieces) == 0, "sizes are multiples of the alignment"
    tensors = {f"t{i}": random.integers(0, 256, each, dtype=np.uint8) for i in range(pieces)}
    return write_bundle(path, tensors, name=name)


def usable(path: Path) -> bool:
    """Whether a bundle of an earlier run is there, in the format of today."""
    try:
        open_bundle(path)
    except BundleError:
        return False
    return True


def packed_bytes(bundle: Bundle) -> bytes:
    """The packed weights as a region or extent holds them, read without the code under test."""
    data = (bundle.path / bundle.manifest.weights.file).read_bytes()
    image = bytearray(bundle.layout.nbytes)
    for entry, placed in zip(bundle.entries, bundle.layout.tensors, strict=True):
        image[placed.offset : placed.end] = data[entry.start : entry.start + entry.spec.nbytes]
    return bytes(image)
