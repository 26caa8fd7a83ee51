# SPDX-License-Identifier: Apache-2.0
"""What happens to a model before the device thread gets it: its headers are read, its executables are built."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from ballast_contract.config import WorkerConfig
from ballast_contract.reasons import Reason
from ballast_worker.build.builder import Builder, BuildRequest
from ballast_worker.bundle.errors import BundleError
from ballast_worker.bundle.reader import Bundle, open_bundle
from ballast_worker.bundle.uri import resolve_uri
from ballast_worker.control.models import Built, Failure

_log = logging.getLogger(__name__)


def inspect(uri: str, digest: str, stores: Mapping[str, Path]) -> Bundle:
    """Read a bundle's headers.

    Args:
        uri: where it is.
        digest: which it must be; empty accepts any.
        stores: mount path of each claim.

    Raises:
        BundleError: nothing is there, it breaks a rule, or it is another bundle.
    """
    bundle = open_bundle(resolve_uri(uri, stores))
    if digest and bundle.digest != digest:
        raise BundleError(
            "SourceChanged",
            f"{uri} has digest {bundle.digest}, asked for was {digest}: correct the digest, or put the right bundle there",
        )
    return bundle


class Workshop:
    """Builds bundles and counts how that ended. Safe from any thread."""

    def __init__(self, config: WorkerConfig, builder: Builder) -> None:
        self._config, self._builder = config, builder
        self._lock = threading.Lock()
        self._results: Counter[str] = Counter()

    def build(self, bundle: Bundle, *, memory_bytes: int, progress: Callable[[str], None]) -> Built | Failure:
        """Build every program of a bundle; blocks until the end.

        Args:
            bundle: what to build.
            memory_bytes: device memory that the builder may take.
            progress: told in words what is being done.
        """
        try:
            return self._build(bundle, memory_bytes, progress)
        except Exception as error:  # noqa: BLE001 - one model's trouble is not the others'
            _log.exception("%s could not be built", bundle.path)
            return Failure(Reason.LOAD_FAILED_WILL_RETRY, f"building failed: {type(error).__name__}: {error}")

    def _build(self, bundle: Bundle, memory_bytes: int, progress: Callable[[str], None]) -> Built | Failure:
        request = BuildRequest(
            bundle=bundle.path,
            digest=bundle.digest,
            programs=tuple(tuple(sorted(program.items())) for program in bundle.manifest.canonical_programs()),
            backend=self._config.backend,
            ordinal=self._config.device.ordinal,
            memory_bytes=memory_bytes,
            timeout_seconds=self._config.build.timeout_seconds,
        )
        result = self._builder.build(request, progress=progress)
        with self._lock:
            self._results["failed" if result.failure else "built" if result.compiled else "stored"] += 1
        if result.failure is not None:
            return Failure.of(result.failure)
        return Built(bundle, result.programs, result.context_bytes)

    def tend(self, used: Iterable[Built]) -> None:
        """Have the store drop what nobody used for long, on a thread of its own: a file system that hangs holds up nothing."""
        programs = [program for built in used for program in built.programs]
        threading.Thread(target=self._builder.tend, args=(programs,), name="sweep", daemon=True).start()

    def results(self) -> dict[str, int]:
        """Finished builds by result."""
        with self._lock:
            return dict(self._results)

    def close(self) -> None:
        """Kill what still builds."""
        self._builder.close()
