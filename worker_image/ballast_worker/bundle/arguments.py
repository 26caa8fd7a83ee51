# SPDX-License-Identifier: Apache-2.0
"""What `pack_bundle` is called with, checked before anything is traced: kinds of values, in words of whoever calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ballast_contract.validation import nearest, short
from ballast_worker.bundle.errors import BundleError
from ballast_worker.bundle.parameters import check_dtype
from ballast_worker.bundle.safetensors import CODE_OF_DTYPE

Port = tuple[str, str, tuple[int | str, ...]]
"""Name, canonical dtype and shape of an input."""


def check_arguments(
    *, function: Any, max_batch: Any, texts: Mapping[str, Any], lists: Mapping[str, Any], dicts: Mapping[str, Any]
) -> None:
    """Refuse what is of the wrong kind; anything but the function may be None.

    Args:
        function: Must be callable.
        max_batch: Must be a whole number.
        texts: Must be text, by name of the argument.
        lists: Must be lists of text.
        dicts: Must be lists of dicts.

    Raises:
        BundleError: `BundleInvalid`, naming argument and value.
    """
    if not callable(function):
        raise _wrong("function", function, "a function f(parameters, *inputs)")
    if max_batch is not None and not _whole(max_batch):
        raise _wrong("max_batch", max_batch, "a whole number")
    for name, value in texts.items():
        if value is not None and not isinstance(value, str):
            raise _wrong(name, value, "text")
    for name, value in lists.items():
        if value is not None and not (_listed(value) and all(isinstance(item, str) for item in value)):
            raise _wrong(name, value, "a list of text")
    for name, value in dicts.items():
        if value is not None and not (_listed(value) and all(isinstance(item, Mapping) for item in value)):
            raise _wrong(name, value, "a list of dicts")
    for index, program in enumerate(dicts.get("programs") or ()):
        for dimension, size in program.items():
            if not _whole(size):
                raise _wrong(f"programs[{index}]: {dimension}", size, "a whole number")


def check_inputs(inputs: Any) -> list[Port]:
    """Name, canonical dtype and shape of each input.

    Raises:
        BundleError: `BundleInvalid`, naming the input and what is wrong with it.
    """
    if not _listed(inputs):
        raise _wrong("inputs", inputs, "a list")
    return [_port(given) for given in inputs]


def _port(given: Any) -> Port:
    rule = 'a name, a dtype and a shape, as in ("x", "float32", ("batch", 8))'
    if not _listed(given) or len(given) != 3:
        raise _wrong("an input", given, rule)
    name, dtype, shape = given
    if not isinstance(name, str) or not _listed(shape):
        raise _wrong("an input", given, rule)
    for axis in shape:
        if not isinstance(axis, str) and not _whole(axis):
            raise _wrong(f"an axis of input {name!r}", axis, "a size or the name of a dimension")
    sizes = tuple(axis if isinstance(axis, str) else int(axis) for axis in shape)
    return name, check_dtype(f"input {name!r}", _dtype(name, dtype)), sizes


def _dtype(port: str, given: Any) -> str:
    try:
        return str(np.dtype(given).name)
    except (TypeError, ValueError, SyntaxError) as error:
        hint = nearest(given, CODE_OF_DTYPE) if isinstance(given, str) else None
        what = f"did you mean {hint!r}?" if hint else f"known are {', '.join(sorted(CODE_OF_DTYPE))}"
        raise BundleError("BundleInvalid", f"input {port!r} has dtype {short(given)}: {what}") from error


def _whole(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _listed(value: Any) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)


def _wrong(what: str, value: Any, rule: str) -> BundleError:
    return BundleError("BundleInvalid", f"{what} is {short(value)} ({type(value).__name__}); it must be {rule}")
