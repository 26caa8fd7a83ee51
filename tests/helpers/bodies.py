# SPDX-License-Identifier: Apache-2.0
"""Requests of both protocols and the signatures they are for, made without a model."""

from __future__ import annotations

import json

import numpy as np

from ballast_contract.v1 import inference_pb2 as pb
from ballast_worker.bundle.manifest import Manifest
from ballast_worker.serving.signature import Signature

DIGEST = "sha256:" + "0" * 64


def manifest(inputs, outputs, *, dimensions=(), batch=None, programs=None) -> Manifest:
    port = ["name", "dtype", "shape"]
    document = {
        "format": "ballast.dev/bundle/v1",
        "name": "m",
        "function": {"digest": DIGEST, "bytes": 1, "platforms": ["cpu"], "jaxVersion": "0", "callingConvention": 1},
        "weights": {"digest": "blake3:" + "0" * 64, "bytes": 1, "tensors": []},
        "dimensions": dimensions,
        "batchDimension": batch,
        "inputs": [dict(zip(port, item, strict=True)) for item in inputs],
        "outputs": [dict(zip(port, item, strict=True)) for item in outputs],
    }
    if programs is not None:
        document["programs"] = programs
    return Manifest.model_validate(document)


TWO = Signature(
    manifest(
        [("x", "float32", ("batch", 3)), ("ids", "int8", ("batch", "length"))],
        [("y", "float32", ("batch", 3)), ("z", "bfloat16", ("batch",))],
        dimensions=("batch", "length"),
        batch="batch",
        programs=[{"batch": 4, "length": 8}, {"batch": 1, "length": 64}],
    )
)
X = np.arange(6, dtype=np.float32).reshape(2, 3)
IDS = np.arange(8, dtype=np.int8).reshape(2, 4)


def body(*raw: bytes, **document) -> tuple[bytes, int]:
    head = json.dumps(document).encode()
    return head + b"".join(raw), len(head)


def binary(name: str, datatype: str, array: np.ndarray, size: int | None = None) -> dict:
    return {
        "name": name,
        "datatype": datatype,
        "shape": list(array.shape),
        "parameters": {"binary_data_size": array.nbytes if size is None else size},
    }


def number(name: str, datatype: str, array: np.ndarray) -> dict:
    return {"name": name, "datatype": datatype, "shape": list(array.shape), "data": array.tolist()}


GOOD = [number("x", "FP32", X), number("ids", "INT8", IDS)]


def infer(**fields) -> pb.ModelInferRequest:
    return pb.ModelInferRequest(model_name="m", **fields)


def port(name: str, datatype: str, shape, **contents) -> pb.ModelInferRequest.InferInputTensor:
    item = pb.ModelInferRequest.InferInputTensor(name=name, datatype=datatype, shape=shape)
    if contents:
        item.contents.CopyFrom(pb.InferTensorContents(**contents))
    return item
