# SPDX-License-Identifier: Apache-2.0
"""uv's version is one line of the constraints, for this machine and for the images."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from e2e.bootstrap import installer
from e2e.bootstrap.installer import wanted_version
from e2e.bootstrap.tools import Home
from e2e.cluster.console import ClusterError

ROOT = Path(__file__).resolve().parents[2]
READERS = ("operator/Dockerfile", "worker_image/Dockerfile", "e2e/bootstrap/installer.py")


def _home(folder: Path, *, version: str) -> Home:
    """A cache with a uv that says that it is of this version."""
    program = folder / "uv" / "bin" / "uv"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho uv {version} '(x86_64-unknown-linux-gnu)'\n")
    program.chmod(0o755)
    home = Home(folder)
    home.logs.mkdir()
    return home


def test_uv_of_the_constraints_is_kept(tmp_path: Path) -> None:
    home = _home(tmp_path, version=wanted_version("uv"))
    assert installer.uv(home, "/there/is/no/python") == tmp_path / "uv" / "bin" / "uv"


def test_uv_of_another_version_is_made_anew_with_that_of_the_constraints(tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text(
        f"#!/bin/sh\nprintf '#!/bin/sh\\necho \"pip $*\"\\n' > {tmp_path}/uv/bin/pip\nchmod +x {tmp_path}/uv/bin/pip\n"
    )
    python.chmod(0o755)
    home = _home(tmp_path, version="0.0.1")
    installer.uv(home, str(python))
    assert f"pip install --no-compile -c {ROOT / 'constraints.txt'} uv" in (home.logs / "venv.log").read_text()


@pytest.mark.parametrize("name", READERS)
def test_no_reader_of_the_constraints_names_a_version_of_its_own(name: str) -> None:
    assert not re.search(r"\buv[=<>~]=", (ROOT / name).read_text())


@pytest.mark.parametrize("name", READERS[:2])
def test_images_install_uv_by_the_constraints_that_they_were_given_before(name: str) -> None:
    text = (ROOT / name).read_text()
    given, used = text.index("COPY constraints.txt /"), text.index("--target /uv -c /constraints.txt uv ")
    assert given < used


def test_a_version_with_a_marker_is_read_without_it(tmp_path: Path) -> None:
    constraints = tmp_path / "constraints.txt"
    constraints.write_text('# uv==9\nuvloop==1.0\nuv == 0.2.1; python_version < "3.12"  # as any\n')
    assert wanted_version("uv", constraints) == "0.2.1"
    with pytest.raises(ClusterError, match="gives jax no version: write a line jax==VERSION"):
        wanted_version("jax", constraints)
