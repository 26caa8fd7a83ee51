# SPDX-License-Identifier: Apache-2.0
"""Inference over gRPC: raw tensors stay views of the message, typed contents become arrays, answers are raw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from google.protobuf.message import DecodeError

from ballast_contract.v1 import inference_pb2 as pb
from ballast_worker.serving import wire
from ballast_worker.serving.call import Array
from ballast_worker.serving.http_codec import distinct, raw_bytes, refuse_output_parameters, timeout
from ballast_worker.serving.signature import Request, Signature
from ballast_worker.serving.tensors import RequestError, Tensor, from_numbers, from_raw

_RAW_INPUTS: Final = 7
_RAW_OUTPUTS: Final = 6

_CONTENTS: Final[Mapping[str, str]] = {
    "BOOL": "bool_contents",
    "INT8": "int_contents",
    "INT16": "int_contents",
    "INT32": "int_contents",
    "INT64": "int64_contents",
    "UINT8": "uint_contents",
    "UINT16": "uint_contents",
    "UINT32": "uint_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
}


def parse(message: bytes) -> tuple[pb.ModelInferRequest, list[memoryview]]:
    """A ModelInferRequest without its raw tensors, and those as views of the message.

    Raises:
        RequestError: the message is no ModelInferRequest.
    """
    try:
        rest, raw = wire.split(message, _RAW_INPUTS)
        return pb.ModelInferRequest.FromString(rest), raw
    except (wire.WireError, DecodeError) as error:
        raise RequestError(f"the message is no ModelInferRequest: {error}") from error


def decode(signature: Signature, infer: pb.ModelInferRequest, raw: Sequence[memoryview]) -> Request:
    """Read what `parse` gave. Arrays of raw tensors are views of the message.

    Raises:
        RequestError: it is not a request that this model can be asked.
    """
    if raw and len(raw) != len(infer.inputs):
        raise RequestError(
            f"{len(raw)} raw_input_contents for {len(infer.inputs)} inputs: send all inputs raw, or none"
        )
    found: list[tuple[Tensor, Array]] = []
    for position, item in enumerate(infer.inputs):
        tensor, shape = signature.input(item.name, item.datatype, item.shape)
        if "shared_memory_region" in item.parameters:
            raise RequestError(f"input '{tensor.name}' is in shared memory, which is not offered: send its bytes")
        if raw:
            if item.HasField("contents"):
                raise RequestError(f"input '{tensor.name}' has contents beside raw_input_contents: send one of them")
            found.append((tensor, from_raw(tensor, shape, raw[position])))
        else:
            found.append((tensor, _from_contents(tensor, shape, item.contents)))
    inputs, dimensions = signature.gather(found)
    parameters = {name: _parameter(value) for name, value in infer.parameters.items()}
    return Request(
        id=infer.id,
        inputs=inputs,
        dimensions=dimensions,
        outputs=_outputs(signature, infer.outputs),
        timeout_seconds=timeout(parameters.get("timeout")),
    )


def encode(model: str, version: str, request: Request, outputs: Sequence[Array]) -> bytes:
    """A ModelInferResponse; each raw tensor is copied once, into the message."""
    head = pb.ModelInferResponse(model_name=model, model_version=version, id=request.id)
    pieces: list[bytes | memoryview] = [b""]
    for tensor, _ in request.outputs:
        array = outputs[tensor.index]
        head.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=array.shape)
        pieces.append(wire.bytes_field(_RAW_OUTPUTS, array.nbytes))
        if array.nbytes:
            pieces.append(raw_bytes(array))
    pieces[0] = head.SerializeToString()
    return b"".join(pieces)


def _outputs(signature: Signature, wanted: Any) -> list[tuple[Tensor, bool]]:
    if not wanted:
        return signature.all_outputs(binary=True)
    outputs = []
    for item in wanted:
        tensor = signature.output(item.name)
        refuse_output_parameters(tensor, item.parameters)
        outputs.append((tensor, True))
    return distinct(outputs)


def _from_contents(tensor: Tensor, shape: tuple[int, ...], contents: pb.InferTensorContents) -> Array:
    field = _CONTENTS.get(tensor.datatype)
    if field is None:
        raise RequestError(
            f"input '{tensor.name}' of {tensor.datatype} came without raw bytes; it has no typed contents, so send it "
            "in raw_input_contents"
        )
    return from_numbers(tensor, shape, getattr(contents, field))


def _parameter(value: pb.InferParameter) -> object:
    choice = value.WhichOneof("parameter_choice")
    return None if choice is None else getattr(value, choice)
