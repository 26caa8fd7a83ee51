# SPDX-License-Identifier: Apache-2.0
"""What server and models say about themselves, in terms that both protocols turn into their own."""

from __future__ import annotations

from typing import Any, Final

from ballast_contract import __version__
from ballast_worker.serving.shown import cut
from ballast_worker.serving.signature import Signature
from ballast_worker.serving.tensors import Tensor

SERVER_NAME: Final = "ballast"
EXTENSIONS: Final = ("binary_tensor_data",)
PLATFORM: Final = "jax_stablehlo"
VERSION: Final = "1"
"""The one version that every model has: which bytes serve is decided by the model's source, not by the caller."""


def server() -> dict[str, Any]:
    """Server metadata."""
    return {"name": SERVER_NAME, "version": __version__, "extensions": list(EXTENSIONS)}


def model(name: str, signature: Signature) -> dict[str, Any]:
    """Model metadata."""
    return {
        "name": name,
        "versions": [VERSION],
        "platform": PLATFORM,
        "inputs": [_tensor(tensor) for tensor in signature.inputs],
        "outputs": [_tensor(tensor) for tensor in signature.outputs],
    }


def wrong_version(name: str, version: str) -> str:
    """What to say to a caller who asks for a version that is not there; empty for one that is."""
    if version in ("", VERSION):
        return ""
    return f"model '{cut(name)}' has no version '{cut(version)}': leave the version out, or ask for '{VERSION}'"


def _tensor(tensor: Tensor) -> dict[str, Any]:
    return {"name": tensor.name, "datatype": tensor.datatype, "shape": tensor.metadata_shape}
