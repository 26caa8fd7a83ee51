# SPDX-License-Identifier: Apache-2.0
"""Looking at the folder of models again and again, on a thread of its own: a share that hangs holds up nothing."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Final

from ballast_worker.control.assignment import AssignedModel, AssignmentError
from ballast_worker.control.standalone import Folder

_log = logging.getLogger(__name__)

SCAN_SECONDS: Final = 2.0
"""Between two looks at the folder."""

_LONG_SECONDS: Final = 30.0
"""A look that takes longer is warned of."""


class Lookout:
    """Owned by the control loop; never blocks. There is one look at a time.

    Args:
        folder: which only this looks at.
        scan_seconds: between the beginnings of two looks.
        executor: runs the looks; by default a thread.
    """

    def __init__(self, folder: Folder, *, scan_seconds: float = SCAN_SECONDS, executor: Executor | None = None) -> None:
        self._folder, self._scan_seconds = folder, scan_seconds
        self._executor = executor or ThreadPoolExecutor(1, thread_name_prefix="folder")
        self._looking: Future[tuple[AssignedModel, ...] | None] | None = None
        self._began = -scan_seconds
        self._warned = False

    def first(self) -> Future[tuple[AssignedModel, ...]]:
        """The models as they are now; raises as `Folder.scan`. Before the first `poll`."""
        return self._executor.submit(self._folder.scan)

    def poll(self, now: float, known: Mapping[str, AssignedModel]) -> tuple[AssignedModel, ...] | None:
        """The models when a look found others than those known, and they have settled. A folder that cannot be read, or
        does not answer, changes nothing.

        Args:
            now: monotonic seconds.
            known: by name.
        """
        looking = self._looking
        if looking is None:
            if now - self._began >= self._scan_seconds:
                self._began, self._warned = now, False
                self._looking = self._executor.submit(self._folder.settled)
            return None
        if not looking.done():
            self._warn(now)
            return None
        self._looking = None
        try:
            models = looking.result()
        except AssignmentError as error:
            _log.error("%s; the models stay as they are", error)
            return None
        return None if models is None or {model.name: model for model in models} == known else models

    def close(self) -> None:
        """Look no more; a look that hangs is not waited for."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _warn(self, now: float) -> None:
        if not self._warned and now - self._began >= _LONG_SECONDS:
            self._warned = True
            _log.warning("modelDirectory has not answered for %.0f s; the models stay as they are", now - self._began)
