# SPDX-License-Identifier: Apache-2.0
"""Inference over HTTP: JSON bodies, and the binary tensor extension that puts raw tensors behind the JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import orjson

from ballast_worker.serving.call import Array
from ballast_worker.serving.shown import shown
from ballast_worker.serving.signature import Request, Signature
from ballast_worker.serving.tensors import RequestError, Tensor, from_raw, from_values

_JSON: Final = orjson.OPT_SERIALIZE_NUMPY

DIGITS: Final = 20
"""Of the largest number of 64 bits."""


def decode(signature: Signature, body: bytes, header_length: int | None) -> Request:
    """Read the body of an inference request.

    Args:
        signature: of the model.
        body: as it came, decompressed. Arrays of raw tensors are views of it.
        header_length: bytes of JSON at its start, from Inference-Header-Content-Length; None: all of it.

    Raises:
        RequestError: the body is not a request that this model can be asked.
    """
    if header_length is not None and not 0 < header_length <= len(body):
        raise RequestError(
            f"Inference-Header-Content-Length is {header_length}; the body has {len(body)} bytes, and its JSON part at "
            "least one"
        )
    view = memoryview(body)
    raw = view[header_length:] if header_length is not None else view[:0]
    try:
        document = orjson.loads(view[:header_length] if header_length is not None else body)
    except orjson.JSONDecodeError as error:
        raise RequestError(f"the request is not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise RequestError("the request is not a JSON object")
    found: list[tuple[Tensor, Array]] = []
    for item in _objects(document, "inputs"):
        tensor, shape = signature.input(item.get("name"), item.get("datatype"), item.get("shape"))
        parameters = _parameters(item, f"input '{tensor.name}'")
        size = parameters.get("binary_data_size")
        if "shared_memory_region" in parameters:
            raise RequestError(f"input '{tensor.name}' is in shared memory, which is not offered: send its bytes")
        if size is None:
            found.append((tensor, from_values(tensor, shape, item.get("data"))))
            continue
        if type(size) is not int or not 0 <= size <= len(raw):
            raise RequestError(
                f"input '{tensor.name}' has binary_data_size {shown(size)}; {len(raw)} bytes of raw data are left for it"
            )
        found.append((tensor, from_raw(tensor, shape, raw[:size])))
        raw = raw[size:]
    if raw:
        raise RequestError(
            f"{len(raw)} bytes follow the last raw input: the sum of binary_data_size is not what was sent"
        )
    inputs, dimensions = signature.gather(found)
    parameters = _parameters(document, "the request")
    return Request(
        id=_text(document.get("id"), "id"),
        inputs=inputs,
        dimensions=dimensions,
        outputs=_outputs(signature, document, binary=parameters.get("binary_data_output") is True),
        timeout_seconds=timeout(parameters.get("timeout")),
    )


def timeout(microseconds: object) -> float | None:
    """The request parameter `timeout`, which counts microseconds, in seconds; 0 and absence mean none.

    Raises:
        RequestError: it is no whole number, or negative.
    """
    if microseconds is None:
        return None
    if (
        isinstance(microseconds, str)
        and len(microseconds) <= DIGITS
        and microseconds.isascii()
        and microseconds.isdigit()
    ):
        microseconds = int(microseconds)
    if type(microseconds) is not int or microseconds < 0:
        raise RequestError(
            f"parameter timeout is {shown(microseconds)}: it is a whole number of microseconds, 0 for none"
        )
    return microseconds / 1e6 or None


def encode(
    model: str, version: str, request: Request, outputs: Sequence[Array]
) -> tuple[list[bytes | memoryview], int | None]:
    """The body of an answer in pieces, and the length of its JSON part when raw tensors follow it.

    In JSON, numbers that are not finite become null, because JSON has no other word for them.
    """
    described = []
    raw: list[bytes | memoryview] = []
    binary = False
    for tensor, wanted_raw in request.outputs:
        array = outputs[tensor.index]
        item: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": array.shape}
        if wanted_raw:
            binary = True
            item["parameters"] = {"binary_data_size": array.nbytes}
            if array.nbytes:
                raw.append(raw_bytes(array))
        else:
            flat = np.ascontiguousarray(array).reshape(-1)
            item["data"] = flat.astype(np.float32) if tensor.datatype == "BF16" else flat
        described.append(item)
    answer: dict[str, Any] = {"model_name": model, "model_version": version, "outputs": described}
    if request.id:
        answer["id"] = request.id
    head = orjson.dumps(answer, option=_JSON)
    return [head, *raw], len(head) if binary else None


def raw_bytes(array: Array) -> memoryview:
    """The bytes of an array, row-major; copied only where it is not contiguous."""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def _outputs(signature: Signature, document: dict[str, Any], *, binary: bool) -> list[tuple[Tensor, bool]]:
    if not document.get("outputs"):
        return signature.all_outputs(binary=binary)
    wanted = []
    for item in _objects(document, "outputs"):
        tensor = signature.output(item.get("name"))
        parameters = _parameters(item, f"output '{tensor.name}'")
        refuse_output_parameters(tensor, parameters)
        own = parameters.get("binary_data")
        wanted.append((tensor, binary if own is None else own is True))
    return distinct(wanted)


def distinct(wanted: list[tuple[Tensor, bool]]) -> list[tuple[Tensor, bool]]:
    """The same outputs: an answer has each of them once.

    Raises:
        RequestError: one of them is there twice.
    """
    if len(wanted) > 1:
        seen: set[int] = set()
        for tensor, _ in wanted:
            if tensor.index in seen:
                raise RequestError(f"output '{tensor.name}' was asked for twice: name it once")
            seen.add(tensor.index)
    return wanted


def refuse_output_parameters(tensor: Tensor, parameters: Any) -> None:
    """Say no to what clients may ask of an output and this server does not do.

    Raises:
        RequestError: one of these is asked for.
    """
    if "shared_memory_region" in parameters:
        raise RequestError(f"output '{tensor.name}' is wanted in shared memory, which is not offered: leave it out")
    if "classification" in parameters:
        raise RequestError(
            f"output '{tensor.name}' is wanted as classification, which is not offered: ask for the tensor"
        )


def _objects(document: dict[str, Any], key: str) -> list[dict[str, Any]]:
    items = document.get(key, [])
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise RequestError(f"'{key}' is not a list of JSON objects")
    return items


def _parameters(item: dict[str, Any], where: str) -> dict[str, Any]:
    parameters = item.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise RequestError(f"'parameters' of {where} is not a JSON object")
    return parameters


def _text(value: object, key: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise RequestError(f"'{key}' is not a text")
    return value
