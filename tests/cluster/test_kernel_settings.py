# SPDX-License-Identifier: Apache-2.0
"""What kubelets set in the kernel is as before when the last node has gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.cluster import kernel, nodes
from e2e.cluster.kernel import remember, restore
from e2e.cluster.settings import Settings

BEFORE = {"kernel/panic": "0", "kernel/panic_on_oops": "0", "vm/overcommit_memory": "2", "kernel/random/boot_id": "a"}


class Kernel:
    """The files of a kernel's settings, and the note of what they were."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "sys"
        self.note = folder / "note"
        self.set(BEFORE)

    def set(self, settings: dict[str, str]) -> None:
        for name, value in settings.items():
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text(f"{value}\n")

    def kubelet(self) -> None:
        self.set({"kernel/panic": "10", "kernel/panic_on_oops": "1", "vm/overcommit_memory": "1"})

    def now(self) -> dict[str, str]:
        return {name: (self.folder / name).read_text().strip() for name in BEFORE}

    def up(self) -> None:
        remember(self.note, kernel=self.folder)
        self.kubelet()

    def down(self) -> None:
        restore(self.note, kernel=self.folder)


@pytest.fixture
def machine(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path)


def test_settings_are_what_they_were_before_the_first_cluster(machine: Kernel) -> None:
    machine.up()
    machine.up()  # another cluster beside it, or one that ended without `down`: what the first found counts
    machine.down()
    assert machine.now() == BEFORE
    assert not machine.note.exists()


def test_what_was_changed_between_two_clusters_is_what_the_second_puts_back(machine: Kernel) -> None:
    machine.up()
    machine.down()
    machine.set({"kernel/panic": "60"})
    machine.up()
    machine.down()
    assert machine.now() == BEFORE | {"kernel/panic": "60"}


def test_a_restart_of_the_machine_leaves_nothing_to_put_back(machine: Kernel) -> None:
    machine.up()
    restarted = {"kernel/panic": "5", "kernel/random/boot_id": "b"}
    machine.set(restarted)
    machine.down()
    assert machine.now()["kernel/panic"] == "5"
    machine.set(BEFORE)
    machine.up()
    machine.set(restarted)
    machine.up()
    machine.down()
    assert machine.now()["kernel/panic"] == "5"


def test_settings_stay_where_nothing_or_nonsense_was_written_down(machine: Kernel) -> None:
    machine.kubelet()
    for text in (None, "", "no json"):
        if text is not None:
            machine.note.write_text(text)
        machine.down()
        assert machine.now()["kernel/panic"] == "10"


def test_a_setting_that_cannot_be_put_back_is_said_and_the_others_are(
    machine: Kernel, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.up()
    write = Path.write_text

    def refuse(path: Path, text: str) -> int:
        if path.name == "panic":
            raise PermissionError(13, "Permission denied")
        return write(path, text)

    with monkeypatch.context() as unprivileged:
        unprivileged.setattr(Path, "write_text", refuse)
        machine.down()
    assert "kernel.panic stays 10, and was 0 before `cluster up`" in capsys.readouterr().err
    assert machine.now() == BEFORE | {"kernel/panic": "10"}
    machine.down()
    assert machine.now() == BEFORE


def test_nothing_is_put_back_while_a_node_of_any_cluster_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environ = {"BALLAST_CLUSTER_HOME": str(tmp_path), "BALLAST_CLUSTER_STATE": str(tmp_path / "state")}
    settings = Settings.from_environment(environ)
    restored: list[Path] = []
    monkeypatch.setattr(kernel, "restore", restored.append)
    monkeypatch.setattr(nodes, "_mount_points", lambda: {"/", nodes.NODE_MOUNTS["kubelet"]})
    nodes.remove_mount_points(settings)
    assert not restored
    monkeypatch.setattr(nodes, "_mount_points", lambda: {"/"})
    nodes.remove_mount_points(settings)
    assert [note.parent for note in restored] == [tmp_path]
