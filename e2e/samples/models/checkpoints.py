# SPDX-License-Identifier: Apache-2.0
"""Arrays out of published checkpoints: safetensors, and PyTorch's zip format read without PyTorch.

A PyTorch checkpoint is a pickle, which can run code. Here it can name four things and nothing else, and only at build
time: workers read safetensors.
"""

from __future__ import annotations

import io
import math
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ballast_worker.bundle.layout import numpy_dtype
from ballast_worker.bundle.safetensors import parse_header

Array = NDArray[Any]


def read_safetensors(data: bytes, *, file: str) -> dict[str, Array]:
    """All tensors of a safetensors file, as read-only views of `data`.

    Raises:
        BundleError: `BundleInvalid` when the header is wrong.
    """
    length = int.from_bytes(data[:8], "little")
    header = parse_header(data[8 : 8 + length], file_bytes=len(data), file=file)
    return {
        name: np.frombuffer(data, numpy_dtype(entry.spec.dtype), math.prod(entry.spec.shape), entry.start).reshape(
            entry.spec.shape
        )
        for name, entry in header.entries.items()
    }


def read_torch(data: bytes) -> dict[str, Array]:
    """All tensors of a state dict that `torch.save` wrote.

    Raises:
        ValueError: It is no such file, or its pickle names anything but tensors, their storages and dicts.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = {name.partition("/")[2]: archive.read(name) for name in archive.namelist()}
    except zipfile.BadZipFile as error:
        raise ValueError("not a checkpoint in PyTorch's zip format") from error
    if "data.pkl" not in members:
        raise ValueError("not a checkpoint in PyTorch's zip format: it has no data.pkl")
    state = _Unpickler(members).load()
    if not isinstance(state, dict) or not all(isinstance(value, np.ndarray) for value in state.values()):
        raise ValueError("the checkpoint is not a dict of tensors")
    return dict(state)


class _Unpickler(pickle.Unpickler):
    """Knows the names in `_ALLOWED` and turns storages into arrays."""

    def __init__(self, members: Mapping[str, bytes]) -> None:
        super().__init__(io.BytesIO(members["data.pkl"]))
        self._members = members

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _ALLOWED[f"{module}.{name}"]
        except KeyError:
            raise ValueError(f"the checkpoint's pickle names {module}.{name}, which is not allowed") from None

    def persistent_load(self, pid: Any) -> Array:
        match pid:
            case ("storage", str() as dtype, str() as key, str(), int() as count):
                return np.frombuffer(self._members[f"data/{key}"], np.dtype(dtype), count)
        raise ValueError("the checkpoint's pickle refers to something that is not a storage")


def _rebuild(storage: Array, offset: int, shape: tuple[int, ...], stride: tuple[int, ...], *_: Any) -> Array:
    contiguous = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
    if any(size > 1 and have != want for size, have, want in zip(shape, stride, contiguous, strict=True)):
        raise ValueError(f"a tensor of shape {shape} with strides {stride} is not contiguous")
    return storage[offset : offset + math.prod(shape)].reshape(shape)


_ALLOWED: Mapping[str, Callable[..., Any] | str] = {
    "collections.OrderedDict": OrderedDict,
    "torch._utils._rebuild_tensor_v2": _rebuild,
    "torch.FloatStorage": "<f4",
    "torch.HalfStorage": "<f2",
    "torch.LongStorage": "<i8",
}
