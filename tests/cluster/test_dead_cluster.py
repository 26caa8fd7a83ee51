# SPDX-License-Identifier: Apache-2.0
"""A cluster that ended without `down`, as by a restart of the machine, does not come back with pods that nobody wants."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path

import pytest

from e2e.cluster.console import ClusterError
from e2e.cluster.diagnosis import diagnosis
from e2e.cluster.lifecycle import remove_the_dead
from e2e.cluster.processes import Processes
from e2e.cluster.settings import Settings

pytestmark = pytest.mark.cluster


@pytest.fixture
def dead(tmp_path: Path) -> Settings:
    """What is on the disk of a cluster whose processes are gone."""
    settings = dataclasses.replace(Settings.from_environment(), state=tmp_path / "state", name="dead")
    store, etcd = settings.node_folder(1) / "containerd", settings.state / "etcd"
    for folder in (settings.run, settings.log, store, etcd):
        folder.mkdir(parents=True)
        (folder / "file").touch()
    with subprocess.Popen(["true"]) as ended:
        for name in ("etcd", settings.node_name(1)):
            (settings.run / f"{name}.pid").write_text(f"{ended.pid} 1\n")
    return settings


def test_objects_and_images_of_a_dead_cluster_are_removed(dead: Settings) -> None:
    remove_the_dead(dead)
    assert not list(dead.state.rglob("file"))
    assert Processes(dead).names() == []


def test_a_cluster_of_which_something_runs_is_kept(dead: Settings) -> None:
    processes = Processes(dead)
    with subprocess.Popen(["sleep", "60"]) as alive:
        fields = Path(f"/proc/{alive.pid}/stat").read_text().rpartition(")")[2].split()
        (dead.run / "kube-scheduler.pid").write_text(f"{alive.pid} {fields[19]}\n")
        remove_the_dead(dead)
        alive.kill()
    assert (dead.state / "etcd" / "file").exists()
    assert (dead.node_folder(1) / "containerd" / "file").exists()
    assert "etcd" in processes.names()


def test_a_new_state_folder_is_left_as_it_is(dead: Settings) -> None:
    for path in dead.run.glob("*.pid"):
        path.unlink()
    remove_the_dead(dead)
    assert (dead.state / "etcd" / "file").exists()


def test_where_no_cluster_is_none_is_diagnosed(dead: Settings) -> None:
    assert "etcd" in diagnosis(dead)
    remove_the_dead(dead)
    with pytest.raises(ClusterError, match="there is no cluster in"):
        diagnosis(dead)
