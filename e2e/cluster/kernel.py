# SPDX-License-Identifier: Apache-2.0
"""Settings of this machine's kernel that kubelets change, and what they were before the first node of any cluster of one
BALLAST_CLUSTER_HOME.
"""

from __future__ import annotations

import json
from pathlib import Path

from e2e.cluster.console import say

_SETTINGS = (
    "kernel/keys/root_maxbytes",
    "kernel/keys/root_maxkeys",
    "kernel/panic",
    "kernel/panic_on_oops",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
)
_KERNEL = Path("/proc/sys")
_START = "kernel/random/boot_id"  # another one after each start of the machine, which forgets all settings


def remember(note: Path, *, kernel: Path = _KERNEL) -> None:
    """Write down how the settings are, unless that was done since the machine started and not undone.

    The caller lets no cluster start or end meanwhile, and `restore` once no node of any cluster runs.
    """
    started = (kernel / _START).read_text().strip()
    if _read(note).get(_START) != started:
        found = {name: (kernel / name).read_text().strip() for name in _SETTINGS if (kernel / name).exists()}
        note.write_text(json.dumps({_START: started, **found}, indent=1))


def restore(note: Path, *, kernel: Path = _KERNEL) -> None:
    """Put the settings back and forget them; those of an earlier start of the machine are only forgotten.

    One that cannot be written is said and kept in the note.
    """
    known = _read(note)
    kept = {}
    if (started := known.pop(_START, None)) == (kernel / _START).read_text().strip():
        for name, before in known.items():
            now = "as it is"
            try:
                if (now := (kernel / name).read_text().strip()) != before:
                    (kernel / name).write_text(before)
            except OSError as error:
                kept[name] = before
                say(f"{name.replace('/', '.')} stays {now}, and was {before} before `cluster up`: {error}")
    if kept:
        note.write_text(json.dumps({_START: started, **kept}, indent=1))
    else:
        note.unlink(missing_ok=True)


def _read(note: Path) -> dict[str, str]:
    try:
        return dict(json.loads(note.read_text()))
    except (OSError, ValueError):
        return {}
