# SPDX-License-Identifier: Apache-2.0
"""A worker without an operator: its models are those of its configuration and every bundle of a folder."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ballast_contract.config import WorkerConfig
from ballast_worker.bundle.digests import bytes_digest
from ballast_worker.bundle.errors import BundleError, MissingError
from ballast_worker.bundle.files import FileIdentity, open_directory, open_file, read_file
from ballast_worker.bundle.manifest import MANIFEST_FILE, MAX_MANIFEST_BYTES
from ballast_worker.control.assignment import AssignedModel, AssignmentError, check_names, check_number

_log = logging.getLogger(__name__)

_OF_THE_FILE_SYSTEM: Final = "lost+found"
"""At the top of a volume; only root may look into it, so nobody else can tell that it holds no manifest."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """A manifest as it was when it was read; without identity and digest where it could not be."""

    identity: FileIdentity | None = None
    digest: str = ""


class Folder:
    """Finds the models of a worker that stands alone, again and again.

    A bundle's directory name is its model's name, and the digest of its manifest is part of its spec: a bundle that is
    replaced is a changed spec, one that is renamed is found in the executable store. A directory is left out only when it has
    no manifest for certain; whoever opens the bundle says what is wrong with one that cannot be read.

    Blocks for as long as the file system does. One thread at a time uses it.

    Args:
        config: of the worker.
    """

    def __init__(self, config: WorkerConfig) -> None:
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
        self._unnameable: frozenset[str] = frozenset()

    def scan(self) -> tuple[AssignedModel, ...]:
        """The models now.

        Raises:
            AssignmentError: two have one name, there are too many, or the folder cannot be read.
        """
        models = (*self._listed, *self._bundles())
        check_number(len(models))
        check_names(models)
        return models

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
        if not _utf_8(str(root)):
            raise AssignmentError(f"modelDirectory {str(root)!r} is not UTF-8: rename it")
        try:
            with os.scandir(root) as entries:
                names = sorted(entry.name for entry in entries if _candidate(entry))
        except OSError as error:
            raise AssignmentError(f"modelDirectory '{root}' cannot be read: {error.strerror}") from error
        found, manifests = [], {}
        for name in self._nameable(names):
            path = root / name
            seen = self._look(path)
            if seen is not None:
                manifests[path] = seen
                found.append(AssignedModel(name=name, uri=f"file://{path}", digest=seen.digest))
        self._manifests = manifests
        return found

    def _nameable(self, names: list[str]) -> list[str]:
        """The names that a model may have; the others are told of once."""
        unnameable = frozenset(name for name in names if not _utf_8(name))
        for name in sorted(unnameable - self._unnameable):
            _log.warning("the folder %r in modelDirectory is not served: its name is not UTF-8; rename it", name)
        self._unnameable = unnameable
        return [name for name in names if name not in unnameable]

    def _look(self, directory: Path) -> _Seen | None:
        """The manifest of a directory, read only when it is another file than before; None when there is none."""
        before, shown = self._manifests.get(directory), str(directory)
        try:
            with open_directory(shown) as opened:
                descriptor = open_file(opened, MANIFEST_FILE, shown=shown)
                try:
                    identity = FileIdentity.of(descriptor)
                finally:
                    os.close(descriptor)
                if before is not None and before.identity == identity:
                    return before
                # What is written in between has another identity the next time.
                return _Seen(
                    identity, bytes_digest(read_file(opened, MANIFEST_FILE, shown=shown, limit=MAX_MANIFEST_BYTES))
                )
        except MissingError:
            return None
        except BundleError as error:
            # What cannot be read now may be what serves: only what can be read and is wrong is another bundle.
            return _Seen() if before is None or error.reason == "BundleInvalid" else before


def _candidate(entry: os.DirEntry[str]) -> bool:
    """Whether an entry of the folder may be a bundle: hidden ones are not, nor is anything but a directory."""
    if entry.name.startswith(".") or entry.name == _OF_THE_FILE_SYSTEM:
        return False
    try:
        return entry.is_dir()
    except OSError:  # it cannot be told
        return True


def _utf_8(name: str) -> bool:
    """Whether a name of the file system is text that can be sent and shown."""
    return not any("\ud800" <= character <= "\udfff" for character in name)
