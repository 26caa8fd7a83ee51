# SPDX-License-Identifier: Apache-2.0
"""What a bundle holds, as a table for people and as a document for programs."""

from __future__ import annotations

from typing import Any

from ballast_worker.bundle.dimensions import program_name
from ballast_worker.bundle.reader import Bundle


def size(nbytes: int) -> str:
    """Bytes for people: `90868376 bytes (86.7 MiB)`."""
    for power, unit in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if nbytes >= 1 << power:
            return f"{nbytes} bytes ({nbytes / (1 << power):.1f} {unit})"
    return f"{nbytes} bytes"


def document(bundle: Bundle) -> dict[str, Any]:
    """Everything a bundle's headers say, as a tree for JSON."""
    return {
        "digest": bundle.digest,
        "manifest": bundle.manifest.model_dump(mode="json", by_alias=True, exclude_none=True),
        "packedBytes": bundle.layout.nbytes,
        "largestTensorBytes": bundle.layout.largest_tensor,
        "tensors": [
            {
                "name": placed.spec.name,
                "dtype": placed.spec.dtype,
                "shape": list(placed.spec.shape),
                "bytes": placed.spec.nbytes,
                "packedOffset": placed.offset,
            }
            for placed in bundle.layout.tensors
        ],
    }


def table(bundle: Bundle) -> str:
    """What a person wants to know of a bundle, one fact a line."""
    manifest, layout = bundle.manifest, bundle.layout
    function = manifest.function
    rows = [("name", manifest.name)]
    if manifest.description:
        rows.append(("description", manifest.description))
    rows += [
        ("digest", bundle.digest),
        (
            "weights",
            f"{len(layout.tensors)} tensors, {size(layout.nbytes)} packed, the largest {size(layout.largest_tensor)}",
        ),
        ("function", f"{size(function.bytes)} for {', '.join(function.platforms)}"),
        ("exported by", f"jax {function.jax_version}, calling convention {function.calling_convention}"),
    ]
    for kind, ports in (("input", manifest.inputs), ("output", manifest.outputs)):
        rows += [(kind, f"{port.name} {port.dtype}[{', '.join(map(str, port.shape))}]") for port in ports]
    if manifest.batch_dimension:
        rows.append(("batching", f"along {manifest.batch_dimension}"))
    rows += [("program", program_name(program)) for program in manifest.canonical_programs()]
    rows += [("line", line.model_dump_json(exclude_none=True)) for line in manifest.lines]
    width = max(len(key) for key, _ in rows)
    return "\n".join(f"{key:<{width}}  {value}" for key, value in rows)
