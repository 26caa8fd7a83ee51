# SPDX-License-Identifier: Apache-2.0
"""What must be so of a pool's pages at any moment, as its files say."""

from __future__ import annotations

import os
from pathlib import Path

from ballast_worker.host.directory import SEGMENT_PREFIX, TABLE_FILE, boot_id
from ballast_worker.host.pages import PAGE_BYTES
from ballast_worker.host.table import Table
from ballast_worker.host.table_file import TableFile


def faults(directory: Path, *, strays: bool = False) -> list[str]:
    """What is wrong: pages outside segments, in two regions, or more of them than a region's bytes take; files that are
    missing or of another size; and, unless a process may have been killed while it allocated, files too many.
    """
    table, segment_bytes = _table(directory)
    owner: dict[tuple[int, int], str] = {}
    wrong = []
    for entry in table.entries:
        pages = [(run.segment, page) for run in entry.runs for page in range(run.first, run.first + run.count)]
        if len(pages) != -(-entry.nbytes // PAGE_BYTES):
            wrong.append(f"{entry.name} has {len(pages)} pages for {entry.nbytes} bytes")
        for segment, page in pages:
            if segment not in table.segments or page >= segment_bytes // PAGE_BYTES:
                wrong.append(f"{entry.name} has page {page} of segment {segment}, which is not there")
            if (segment, page) in owner:
                wrong.append(f"page {page} of segment {segment} is in {owner[segment, page]} and {entry.name}")
            owner[segment, page] = entry.name
    slots = [entry.slot for entry in table.entries]
    if len(set(slots)) != len(slots):
        wrong.append(f"slots are used twice: {slots}")
    files = {
        int(path.name.removeprefix(SEGMENT_PREFIX)): path.stat().st_size
        for path in directory.iterdir()
        if path.name.startswith(SEGMENT_PREFIX)
    }
    if dict.fromkeys(table.segments, segment_bytes).items() - files.items():
        wrong.append(f"segments {table.segments} are in the table, and the files are {files}")
    if not strays and set(files) != set(table.segments):
        wrong.append(f"segments {table.segments} are in the table, and there are files of {sorted(files)}")
    return wrong


def used_bytes(directory: Path) -> int:
    """Bytes of the pages of all regions."""
    return sum(entry.host_bytes for entry in _table(directory)[0].entries)


def _table(directory: Path) -> tuple[Table, int]:
    fd = os.open(directory / TABLE_FILE, os.O_RDONLY)
    try:
        file = TableFile(fd, "table")
        assert file.understood(boot_id=boot_id()) is None
        return file.read(), file.segment_bytes
    finally:
        os.close(fd)
