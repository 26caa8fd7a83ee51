# SPDX-License-Identifier: Apache-2.0
"""Images of nothing but one static binary, written straight into the OCI layout."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from pathlib import Path
from typing import Any

from e2e.cluster.layout import Layout

_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"


def write_static_image(layout: Layout, ref: str, binary: Path, *, architecture: str) -> None:
    """Put an image into the layout whose only file, and entry point, is the binary."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        info = tarfile.TarInfo(binary.name)
        info.mode = 0o755
        info.size = binary.stat().st_size
        with binary.open("rb") as file:
            archive.addfile(info, file)
    layer = _blob(layout, _LAYER, data.getvalue())
    content = {
        "architecture": architecture,
        "os": "linux",
        "config": {"Entrypoint": [f"/{binary.name}"]},
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
    }
    config = _blob(layout, _CONFIG, json.dumps(content).encode())
    manifest = {"schemaVersion": 2, "mediaType": _MANIFEST, "config": config, "layers": [layer]}
    layout.add(ref, _blob(layout, _MANIFEST, json.dumps(manifest).encode()))


def _blob(layout: Layout, media_type: str, data: bytes) -> dict[str, Any]:
    digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
    path = layout.blob(digest)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return {"mediaType": media_type, "digest": digest, "size": len(data)}
