# SPDX-License-Identifier: Apache-2.0
"""The cluster that the demo uses when KUBECONFIG names one."""

from __future__ import annotations

import os

import pytest

from e2e.demo import installing
from e2e.demo.kube import CACHE, StepError, foreign_environment


def test_a_kubeconfig_that_is_not_there_is_said_before_anything_is_done(monkeypatch, tmp_path):
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/none")
    with pytest.raises(StepError, match="none, and there is no such file: leave it out for a cluster on this machine"):
        foreign_environment()


def test_the_users_programs_go_before_those_that_were_built(monkeypatch, tmp_path):
    (tmp_path / "config").write_text("")
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path}/none{os.pathsep}{tmp_path}/config")
    assert foreign_environment() == {"PATH": f"{os.environ['PATH']}{os.pathsep}{CACHE}/bin"}


def test_a_cluster_elsewhere_is_not_asked_to_pull_what_was_built_here(monkeypatch):
    monkeypatch.setenv("BALLAST_WORKER_IMAGE", "registry.example/worker:1")
    monkeypatch.delenv("BALLAST_OPERATOR_IMAGE", raising=False)
    with pytest.raises(
        StepError, match=r"registry\.example/worker:1 and BALLAST_OPERATOR_IMAGE not set: both must name"
    ):
        installing.images(local=False)
    monkeypatch.setenv("BALLAST_OPERATOR_IMAGE", "registry.example/operator:1")
    assert installing.images(local=False) == installing.Images(
        "registry.example/worker:1", "registry.example/operator:1"
    )
