# SPDX-License-Identifier: Apache-2.0
"""A worker without an operator: its models are those of its configuration and every bundle of a folder."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ballast_contract.config import WorkerConfig
from ballast_worker.bundle.digests import bytes_digest
from ballast_worker.bundle.manifest import MANIFEST_FILE, MAX_MANIFEST_BYTES
from ballast_worker.control.assignment import AssignedModel, AssignmentError, check_names, check_number

_log = logging.getLogger(__name__)


SCAN_SECONDS: Final = 2.0
"""Between two looks at the folder."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """A manifest as it was when it was read."""

    identity: tuple[int, int, int, int]
    digest: str


class Folder:
    """Finds the models of a worker that stands alone, again and again.

    A bundle's directory name is its model's name, and the digest of its manifest is part of its spec: a bundle that is
    replaced is a changed spec, one that is renamed is found in the executable store.

    Args:
        config: of the worker.
        scan_seconds: between two looks.
    """

    def __init__(self, config: WorkerConfig, *, scan_seconds: float = SCAN_SECONDS) -> None:
        self._scan_seconds = scan_seconds
        self._directory = config.model_directory
        self._listed = tuple(
            AssignedModel(
                name=entry.name,
                uri=entry.uri,
                digest=entry.digest,
                residency=entry.residency,
                max_batch=entry.batching.max_size,
                max_delay_milliseconds=entry.batching.max_delay_milliseconds,
            )
            for entry in config.models
        )
        self._manifests: dict[Path, _Seen] = {}
        self._previous: tuple[AssignedModel, ...] | None = None
        self._next = 0.0

    def scan(self) -> tuple[AssignedModel, ...]:
        """The models now.

        Raises:
            AssignmentError: two have one name, there are too many, or the folder cannot be read.
        """
        models = (*self._listed, *self._bundles())
        check_number(len(models))
        check_names(models)
        return models

    def poll(self, now: float, known: Mapping[str, AssignedModel]) -> tuple[AssignedModel, ...] | None:
        """The models when they are others than those known and have settled; looks now and then. A folder that
        cannot be read changes nothing.
        """
        if now < self._next:
            return None
        self._next = now + self._scan_seconds
        try:
            models = self.settled()
        except AssignmentError as error:
            _log.error("%s; the models stay as they are", error)
            return None
        return None if models is None or {model.name: model for model in models} == known else models

    def settled(self) -> tuple[AssignedModel, ...] | None:
        """The models now, once two scans in a row saw the same; None while something is still being copied.

        Raises:
            AssignmentError: as `scan`.
        """
        models = self.scan()
        same = models == self._previous
        self._previous = models
        return models if same else None

    def _bundles(self) -> list[AssignedModel]:
        if self._directory is None:
            return []
        root = self._directory.expanduser().absolute()
        try:
            names = sorted(
                entry.name for entry in os.scandir(root) if entry.is_dir() and not entry.name.startswith(".")
            )
        except OSError as error:
            raise AssignmentError(f"modelDirectory '{root}' cannot be read: {error.strerror}") from error
        found, manifests = [], {}
        for name in names:
            path = root / name / MANIFEST_FILE
            seen = self._read(path)
            if seen is not None:
                manifests[path] = seen
                found.append(AssignedModel(name=name, uri=f"file://{root / name}", digest=seen.digest))
        self._manifests = manifests
        return found

    def _read(self, path: Path) -> _Seen | None:
        """The manifest at a path, read only when it is another file than before; None when there is none."""
        try:
            status = path.stat()
            identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
            before = self._manifests.get(path)
            if before is not None and before.identity == identity:
                return before
            # A manifest that is too long is refused by whoever opens the bundle, in words.
            digest = bytes_digest(path.read_bytes()) if status.st_size <= MAX_MANIFEST_BYTES else ""
            return _Seen(identity, digest)
        except OSError:
            return None
