# SPDX-License-Identifier: Apache-2.0
"""A strict reader of safetensors headers: every byte of the file is accounted for before one tensor is read."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ballast_contract.validation import short
from ballast_worker.bundle.errors import BundleError
from ballast_worker.bundle.faults import did_you_mean
from ballast_worker.bundle.layout import TensorSpec, numpy_dtype
from ballast_worker.bundle.limits import MAX_BYTES, MAX_RANK, MAX_TENSORS, tensor_name

MAX_HEADER_BYTES = 32 << 20
"""Bytes of the JSON header; the format itself allows 100 MB."""

DTYPE_OF_CODE: Mapping[str, str] = {
    "BOOL": "bool",
    "I8": "int8", "I16": "int16", "I32": "int32", "I64": "int64",
    "U8": "uint8", "U16": "uint16", "U32": "uint32", "U64": "uint64",
    "F16": "float16", "F32": "float32", "F64": "float64", "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz",
    "C64": "complex64",
}  # fmt: skip
"""Canonical dtype for each type code that can be served."""

CODE_OF_DTYPE: Mapping[str, str] = {dtype: code for code, dtype in DTYPE_OF_CODE.items()}

SUB_BYTE_CODES = frozenset({"F4", "F4_E2M1", "F6_E2M3", "F6_E3M2", "I4", "U4", "I2", "U2"})
"""Type codes of elements smaller than a byte or not a whole number of bytes: refused."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A tensor in a safetensors file: what it is, and its bytes `start` to `stop`, counted from the start of the file."""

    spec: TensorSpec
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class SafetensorsHeader:
    """What the header of a safetensors file says, checked against the file's size.

    Attributes:
        entries: By tensor name, in the order of the file.
        metadata: The free text map `__metadata__`.
        data_start: Byte at which the first tensor starts.
        file_bytes: Bytes of the whole file.
    """

    entries: Mapping[str, Entry]
    metadata: Mapping[str, str]
    data_start: int
    file_bytes: int


def read_header(fd: int, *, file: str) -> SafetensorsHeader:
    """Read and check the header of the open file `fd`; `file` names it in messages. The file position is not used.

    Raises:
        BundleError: `BundleInvalid`: too short, a header beyond `MAX_HEADER_BYTES`, not JSON, a duplicate key, an
            unknown or sub-byte dtype, ranges that overlap, leave holes or do not match their shapes, or a file that is
            longer or shorter than its tensors. `SourceNotFound` when it cannot be read.
    """
    try:
        return _read_header(fd, file)
    except OSError as error:
        raise BundleError("SourceNotFound", f"{file}: cannot be read: {error.strerror}") from error


def _read_header(fd: int, file: str) -> SafetensorsHeader:
    size = os.fstat(fd).st_size
    prefix = os.pread(fd, 8, 0)
    if len(prefix) < 8:
        raise _invalid(file, f"{size} bytes; a safetensors file starts with the 8 bytes of its header's length")
    length = int.from_bytes(prefix, "little")
    if length > MAX_HEADER_BYTES:
        raise _invalid(file, f"its header claims {length} bytes; at most {MAX_HEADER_BYTES} are read")
    if 8 + length > size:
        raise _invalid(file, f"truncated: the header ends at byte {8 + length}, the file at byte {size}")
    raw = bytearray()
    while len(raw) < length:
        piece = os.pread(fd, length - len(raw), 8 + len(raw))
        if not piece:
            raise BundleError("SourceChanged", f"{file}: became shorter while its header was read")
        raw += piece
    return parse_header(bytes(raw), file_bytes=size, file=file)


def parse_header(raw: bytes, *, file_bytes: int, file: str) -> SafetensorsHeader:
    """Check the JSON bytes of a header for a file of `file_bytes` bytes.

    Raises:
        BundleError: As for `read_header`.
    """
    document = _load_json(raw, file)
    metadata = _metadata(document.pop("__metadata__", {}), file)
    if len(document) > MAX_TENSORS:
        raise _invalid(file, f"{len(document)} tensors; at most {MAX_TENSORS} are read")
    data_start = 8 + len(raw)
    entries = {name: _entry(name, value, data_start, file) for name, value in document.items()}
    end = data_start
    for entry in sorted(entries.values(), key=lambda entry: (entry.start, entry.stop)):
        if entry.start != end:
            what = "overlaps the tensor before it" if entry.start < end else "leaves a hole before it"
            raise _invalid(
                file,
                f"tensor {entry.spec.name!r} {what}: it starts at data offset {entry.start - data_start}, "
                f"the tensor before it ends at {end - data_start}",
            )
        end = entry.stop
    if end != file_bytes:
        what = "truncated" if end > file_bytes else "longer than its tensors"
        raise _invalid(file, f"{what}: the header accounts for {end} bytes, the file has {file_bytes}")
    return SafetensorsHeader(entries, metadata, data_start, file_bytes)


def build_header(specs: list[TensorSpec]) -> bytes:
    """The length prefix and JSON header of a file that holds `specs` one after the other, padded with spaces to 8 bytes.

    Raises:
        ValueError: A dtype has no safetensors code.
    """
    document: dict[str, Any] = {}
    offset = 0
    for spec in specs:
        if spec.dtype not in CODE_OF_DTYPE:
            raise ValueError(f"tensor {spec.name!r}: safetensors cannot hold {spec.dtype}")
        document[spec.name] = {
            "dtype": CODE_OF_DTYPE[spec.dtype],
            "shape": list(spec.shape),
            "data_offsets": [offset, offset + spec.nbytes],
        }
        offset += spec.nbytes
    raw = json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()
    raw += b" " * (-len(raw) % 8)
    return len(raw).to_bytes(8, "little") + raw


def _load_json(raw: bytes, file: str) -> dict[str, Any]:
    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        result = dict(items)
        if len(result) != len(items):
            counts = Counter(key for key, _ in items)
            twice = next(key for key, count in counts.items() if count > 1)
            raise _invalid(file, f"the header gives the key {short(twice)} twice")
        return result

    def constant(name: str) -> Any:
        raise _invalid(file, f"the header holds {name}, which is not JSON")

    try:
        document = json.loads(raw.decode("utf-8"), object_pairs_hook=pairs, parse_constant=constant)
    except (ValueError, RecursionError) as error:
        raise _invalid(file, f"the header is not JSON: {str(error)[:200]}") from error
    if not isinstance(document, dict):
        raise _invalid(file, "the header is not a JSON object")
    return document


def _metadata(value: Any, file: str) -> Mapping[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise _invalid(file, "__metadata__ is not a map of text to text")
    return value


def _entry(name: str, value: Any, data_start: int, file: str) -> Entry:
    where = f"tensor {short(name)}"
    try:
        tensor_name(name)
    except ValueError as error:
        raise _invalid(file, f"{where}: {error}") from error
    if not isinstance(value, dict):
        raise _invalid(file, f"{where} is not a JSON object")
    expected = {"dtype", "shape", "data_offsets"}
    if extra := sorted(set(value) - expected):
        raise _invalid(file, f"{where} has the unknown key {short(extra[0])}: {did_you_mean(extra[0], expected)}")
    if missing := sorted(expected - set(value)):
        raise _invalid(file, f"{where} lacks {', '.join(missing)}")
    code = value["dtype"]
    if not isinstance(code, str) or code not in DTYPE_OF_CODE:
        if isinstance(code, str) and code in SUB_BYTE_CODES:
            raise _invalid(
                file, f"{where} has dtype {code}: elements smaller than a byte are refused; store them as I8 or F8"
            )
        raise _invalid(file, f"{where} has dtype {short(code)}; known are {', '.join(sorted(DTYPE_OF_CODE))}")
    shape = _sizes(value["shape"], file, where, "shape")
    if len(shape) > MAX_RANK:
        raise _invalid(file, f"{where} has {len(shape)} axes; at most {MAX_RANK} are read")
    offsets = _sizes(value["data_offsets"], file, where, "data_offsets")
    if len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _invalid(
            file,
            f"{where} has data_offsets {short(list(offsets))}; they are its first byte and the byte after its last",
        )
    spec = TensorSpec(name, DTYPE_OF_CODE[code], shape)
    if spec.nbytes != offsets[1] - offsets[0]:
        raise _invalid(
            file,
            f"{where} is {code}{list(shape)}, that is {spec.nbytes} bytes "
            f"({numpy_dtype(spec.dtype).itemsize} each), but its data_offsets span {offsets[1] - offsets[0]}",
        )
    return Entry(spec, data_start + offsets[0], data_start + offsets[1])


def _sizes(value: Any, file: str, where: str, what: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(item) is int and 0 <= item <= MAX_BYTES for item in value):
        raise _invalid(file, f"{where}: {what} {short(value)} is not a list of sizes between 0 and {MAX_BYTES}")
    return tuple(value)


def _invalid(file: str, message: str) -> BundleError:
    return BundleError("BundleInvalid", f"{file}: {message}")
