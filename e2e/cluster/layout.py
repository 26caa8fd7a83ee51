# SPDX-License-Identifier: Apache-2.0
"""The OCI layout that holds every image of the local cluster, each layer once."""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_REF = "org.opencontainers.image.ref.name"


@dataclass(frozen=True)
class Image:
    """An image of a layout: its name, its manifest's entry in the index, and all blobs it needs."""

    ref: str
    entry: dict[str, Any]
    blobs: tuple[str, ...]

    @property
    def digest(self) -> str:
        """Digest of the manifest."""
        return str(self.entry["digest"])


class Layout:
    """A folder in the format of the OCI image layout; its writer is `buildah push ... oci:FOLDER:REF`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def blob(self, digest: str) -> Path:
        """Return the file of a blob."""
        return self.folder / "blobs" / digest.replace(":", "/")

    def images(self) -> list[Image]:
        """Return the images, oldest first."""
        found = []
        for entry in self._index().get("manifests", []):
            ref = entry.get("annotations", {}).get(_REF)
            if ref and self.blob(entry["digest"]).exists():
                manifest = json.loads(self.blob(entry["digest"]).read_text())
                parts = [manifest["config"], *manifest["layers"]]
                blobs = dict.fromkeys([entry["digest"], *(part["digest"] for part in parts)])
                found.append(Image(ref, entry, tuple(blobs)))
        return found

    def whole(self, ref: str) -> bool:
        """Whether the layout has an image with all its blobs."""
        return any(
            image.ref == ref and all(self.blob(blob).exists() for blob in image.blobs) for image in self.images()
        )

    def add(self, ref: str, entry: dict[str, Any]) -> None:
        """Name a manifest that the layout holds; an image of that name before is forgotten."""
        (self.folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        index = {"schemaVersion": 2} | self._index()
        others = [each for each in index.get("manifests", []) if each.get("annotations", {}).get(_REF) != ref]
        index["manifests"] = [*others, entry | {"annotations": {_REF: ref}}]
        (self.folder / "index.json").write_text(json.dumps(index))

    @contextmanager
    def locked(self, *, alone: bool) -> Iterator[None]:
        """Keep blobs from being removed while they are read. alone: for the one who removes them."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
            yield

    def keep(self, refs: set[str]) -> list[str]:
        """Remove all other images and the blobs that only they needed; return the names of the removed."""
        with self.locked(alone=True):
            return self._keep(refs)

    def _keep(self, refs: set[str]) -> list[str]:
        images = self.images()
        kept = [image for image in images if image.ref in refs]
        index = self._index() | {"manifests": [image.entry for image in kept]}
        (self.folder / "index.json").write_text(json.dumps(index))
        needed = {self.blob(blob) for image in kept for blob in image.blobs}
        for path in (self.folder / "blobs").glob("*/*"):
            if path not in needed:
                with contextlib.suppress(FileNotFoundError):
                    path.unlink()
        return [image.ref for image in images if image.ref not in refs]

    def _index(self) -> dict[str, Any]:
        path = self.folder / "index.json"
        return json.loads(path.read_text()) if path.exists() else {}
