# SPDX-License-Identifier: Apache-2.0
"""A cluster that is taken down leaves the folders that nodes of another one mount over."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path

import pytest

from e2e.cluster.nodes import remove_mount_points
from e2e.cluster.settings import Settings

pytestmark = pytest.mark.cluster


def test_a_folder_that_another_namespace_mounts_over_stays_until_it_does_not(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    settings = dataclasses.replace(Settings.from_environment(), state=tmp_path)
    script = (
        f"mount -t tmpfs tmpfs {folder} && touch {folder}/kept && echo mounted && read end && test -e {folder}/kept"
    )
    unshare = ["unshare", "--mount", "--propagation=private", "bash", "-c", script]
    with subprocess.Popen(unshare, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        assert other.stdout.readline() == "mounted\n"
        (tmp_path / "made").write_text(str(folder))
        remove_mount_points(settings)
        assert folder.exists()
        other.communicate("end\n")
    assert other.returncode == 0
    (tmp_path / "made").write_text(str(folder))
    remove_mount_points(settings)
    assert not folder.exists()
