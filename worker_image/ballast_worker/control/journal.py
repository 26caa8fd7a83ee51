# SPDX-License-Identifier: Apache-2.0
"""The culprit journal: which model and program ran when the process died.

A small file is mapped into memory and written before each dispatch. The pages belong to the kernel, so that they survive
whatever kills the process. A slot is in use from `begin` to `end`; one that is in use at the next start names a culprit.
"""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ballast_worker.build.builder import Dimensions
from ballast_worker.bundle.dimensions import program_name

_SLOTS: Final = 64
_SLOT_BYTES: Final = 512
_TEXT_BYTES: Final = _SLOT_BYTES - 4
_SEPARATOR: Final = "\0"
_REMEMBERED: Final = 4096


@dataclass(frozen=True, slots=True)
class Culprit:
    """A model and a program of it that were running when the process ended without closing the journal."""

    model: str
    program: str


class CulpritJournal:
    """Implements `serving.journal.Journal` in a mapped file. One thread writes it at a time: the one that runs every program
    before the start, then the device thread.

    A slot is a byte (1: in use), a spare byte, the length of its text in two bytes, and the text. The text is written
    before the byte, so that a slot in use always has its own text.
    """

    def __init__(self, path: Path) -> None:
        """Map the file, made when it is missing; `culprits` tells what it held.

        Raises:
            OSError: it cannot be made or mapped, or its file system is full.
        """
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(descriptor, _SLOTS * _SLOT_BYTES)
            # Else writing to the map would end the process by SIGBUS where the file system has no room for a page of it.
            os.posix_fallocate(descriptor, 0, _SLOTS * _SLOT_BYTES)
            self._map = mmap.mmap(descriptor, _SLOTS * _SLOT_BYTES)
        finally:
            os.close(descriptor)
        self.culprits = self._read()
        self._map[:] = bytes(len(self._map))
        self._free = list(range(_SLOTS))
        self._used: dict[tuple[str, Dimensions], list[int]] = {}
        self._texts: dict[tuple[str, Dimensions], bytes] = {}

    def begin(self, model: str, program: Dimensions) -> None:
        """See `Journal.begin`."""
        if not self._free:
            return
        key = (model, program)
        text = self._texts.get(key)
        if text is None:
            if len(self._texts) >= _REMEMBERED:
                self._texts.clear()
            text = self._texts[key] = _encode(model, program)
        slot = self._free.pop()
        self._used.setdefault(key, []).append(slot)
        start = slot * _SLOT_BYTES
        self._map[start + 2 : start + 2 + len(text)] = text
        self._map[start] = 1

    def end(self, model: str, program: Dimensions) -> None:
        """See `Journal.end`."""
        slots = self._used.get((model, program))
        if slots is None:
            return
        slot = slots.pop()
        if not slots:
            del self._used[model, program]
        self._map[slot * _SLOT_BYTES] = 0
        self._free.append(slot)

    def close(self) -> None:
        """End in order: nothing is to blame."""
        self._map[:] = bytes(len(self._map))
        self._map.close()

    def _read(self) -> tuple[Culprit, ...]:
        found = []
        for start in range(0, len(self._map), _SLOT_BYTES):
            if self._map[start] != 1:
                continue
            length = min(int.from_bytes(self._map[start + 2 : start + 4], "little"), _TEXT_BYTES)
            model, _, program = self._map[start + 4 : start + 4 + length].decode(errors="replace").partition(_SEPARATOR)
            if model:
                found.append(Culprit(model, program))
        return tuple(dict.fromkeys(found))


def _encode(model: str, program: Dimensions) -> bytes:
    text = f"{model}{_SEPARATOR}{program_name(dict(program))}".encode()[:_TEXT_BYTES]
    return len(text).to_bytes(2, "little") + text
