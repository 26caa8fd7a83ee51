# SPDX-License-Identifier: Apache-2.0
"""What a product was made from, so that nothing is made twice and nothing stale is kept."""

from __future__ import annotations

import hashlib
from pathlib import Path


def key_of(*parts: str | Path) -> str:
    """Return a hash of texts and of files; a folder stands for all files below it."""
    total = hashlib.sha256()
    for part in parts:
        if isinstance(part, str):
            total.update(f"text {len(part)}\n{part}".encode())
            continue
        files = sorted(path for path in part.rglob("*") if path.is_file()) if part.is_dir() else [part]
        for file in files:
            if "__pycache__" not in file.parts:
                data = file.read_bytes()
                total.update(f"file {file.relative_to(part.parent)} {len(data)}\n".encode() + data)
    return total.hexdigest()


class Keys:
    """The keys of the products that exist, one small file for each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fresh(self, product: Path, key: str) -> bool:
        """Whether the product exists and was made from this."""
        note = self._note(product)
        return product.exists() and note.exists() and note.read_text() == key

    def record(self, product: Path, key: str) -> None:
        """Remember what a product that was just made was made from."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._note(product).write_text(key)

    def _note(self, product: Path) -> Path:
        return self.folder / f"{product.name}.key"
