# SPDX-License-Identifier: Apache-2.0
"""What the demo has made before it starts: everything for a cluster here, little for one that is there already."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.bootstrap import binaries, cli, packages, products, venv
from e2e.bootstrap.tools import Home
from e2e.cluster.settings import Settings


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> set[str]:
    """The names of what was made; nothing is made in truth, and this machine has neither kubectl nor Helm."""
    found: set[str] = set()
    monkeypatch.setattr(packages, "install", lambda _, names=(): found.add("few packages" if names else "packages"))
    monkeypatch.setattr(venv, "make", lambda _: found.add("venv"))
    monkeypatch.setattr(products, "build_static", lambda _: found.add("static images"))
    monkeypatch.setattr(products, "build_base", lambda _: found.add("base image"))
    monkeypatch.setattr(products, "build_products", lambda _: found.add("product images"))
    monkeypatch.setattr(binaries, "build", lambda _, names=binaries.NAMES: found.update(names))
    monkeypatch.setattr(cli, "_ROOM", 0)
    monkeypatch.setenv("BALLAST_CLUSTER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.delenv("KUBECONFIG", raising=False)
    return found


def _program(folder: Path, name: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("#!/bin/sh\n")
    (folder / name).chmod(0o755)


def _elsewhere(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    (folder / "kubeconfig").touch()
    monkeypatch.setenv("KUBECONFIG", str(folder / "kubeconfig"))


def test_a_kubeconfig_that_is_not_there_is_said_before_anything_is_made(
    made: set[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", "/some/where/else")
    assert cli.main(["demo"]) == 1
    assert made == set()
    assert "KUBECONFIG is /some/where/else, and there is no such file" in capsys.readouterr().err


def test_a_cluster_elsewhere_needs_kubectl_and_helm_of_all_that_is_built(
    made: set[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _elsewhere(monkeypatch, tmp_path)
    assert cli.main(["demo"]) == 0
    assert made == {"few packages", "venv", "kubectl", "helm"}


def test_programs_that_the_machine_has_are_not_built_for_a_cluster_elsewhere(
    made: set[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _elsewhere(monkeypatch, tmp_path)
    _program(tmp_path / "path", "kubectl")
    assert cli.main(["demo"]) == 0
    assert made == {"few packages", "venv", "helm"}
    made.clear()
    _program(tmp_path / "path", "helm")
    assert cli.main(["demo"]) == 0
    assert made == {"few packages", "venv"}


def test_programs_that_were_built_before_are_looked_at_again(
    made: set[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _elsewhere(monkeypatch, tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path / "home" / "bin"))
    for name in ("kubectl", "helm"):
        _program(tmp_path / "home" / "bin", name)
    assert cli.main(["demo"]) == 0
    assert {"kubectl", "helm"} < made


@pytest.mark.parametrize("kubeconfig", ["", "that of the local cluster"])
def test_the_local_cluster_needs_everything(made: set[str], monkeypatch: pytest.MonkeyPatch, kubeconfig: str) -> None:
    monkeypatch.setenv("KUBECONFIG", str(Settings.from_environment().admin) if kubeconfig else "")
    assert cli.main(["demo"]) == 0
    assert made == {"packages", "venv", "static images", "base image", "product images", *binaries.NAMES}


def test_building_two_programs_leaves_the_others_to_the_run_that_needs_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    home = Home(tmp_path)
    for folder in (home.bin, home.logs, home.keys):
        folder.mkdir()
    compiled: list[list[str]] = []

    def compile_programs(_home: Home, _go: Path, programs: list[binaries.Program], *_: object, **__: object) -> None:
        compiled.append([program.name for program in programs])
        for program in programs:
            (home.bin / program.name).touch()

    monkeypatch.setattr(binaries, "go_compiler", lambda *_, **__: Path("/there/is/no/go"))
    monkeypatch.setattr(binaries, "compile_programs", compile_programs)
    monkeypatch.setattr(binaries, "_build_pause", lambda _: None)
    binaries.build(home, ["kubectl", "helm"])
    assert not (home.bin / "kubelet").is_symlink()
    binaries.build(home)
    assert compiled == [["kubectl", "helm"], ["kube", "etcd", "coredns", "device-plugin"]]
    assert (home.bin / "kubelet").readlink() == Path("kube")
