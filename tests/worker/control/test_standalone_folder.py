# SPDX-License-Identifier: Apache-2.0
"""The models of a worker that stands alone: listed ones and every bundle of a folder, found again when it changes."""

from __future__ import annotations

import shutil

import pytest
from helpers.small_bundles import pack_small

from ballast_worker.control.assignment import AssignmentError
from ballast_worker.control.standalone import Folder


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


def names(models):
    return [model.name for model in models]


def test_every_bundle_of_the_folder_is_a_model_named_after_its_directory(folder, config_for):
    bundle = pack_small(folder / "b", name="another-name")
    pack_small(folder / "a")
    (folder / "no-bundle").mkdir()
    (folder / "file").write_text("x")
    (folder / ".hidden").mkdir()
    models = Folder(config_for(model_directory=str(folder))).scan()
    assert names(models) == ["a", "b"]
    assert models[1].digest == bundle.digest


def test_listed_models_come_with_their_settings(folder, config_for):
    entry = {"name": "listed", "uri": "file:///x", "residency": "device", "batching": {"maxSize": 3}}
    (model,) = Folder(config_for(models=[entry])).scan()
    assert (model.name, model.uri, model.residency.value, model.max_batch) == ("listed", "file:///x", "device", 3)


def test_a_listed_model_may_not_share_its_name_with_a_bundle(folder, config_for):
    pack_small(folder / "m")
    entry = {"name": "m", "uri": "file:///x"}
    with pytest.raises(AssignmentError, match="'m'"):
        Folder(config_for(model_directory=str(folder), models=[entry])).scan()


def test_a_missing_folder_is_named(tmp_path, config_for):
    with pytest.raises(AssignmentError, match=r"modelDirectory .*nowhere"):
        Folder(config_for(model_directory=str(tmp_path / "nowhere"))).scan()


def test_a_change_counts_when_two_scans_agree(folder, config_for):
    pack_small(folder / "a")
    found = Folder(config_for(model_directory=str(folder)))
    assert found.settled() is None
    assert names(found.settled()) == ["a"]
    pack_small(folder / "b")
    assert found.settled() is None
    assert names(found.settled()) == ["a", "b"]
    shutil.rmtree(folder / "a")
    assert found.settled() is None
    assert names(found.settled()) == ["b"]


def test_a_replaced_bundle_is_another_spec(folder, config_for):
    pack_small(folder / "a", factor=2.0)
    found = Folder(config_for(model_directory=str(folder)))
    (before,) = found.scan()
    shutil.rmtree(folder / "a")
    pack_small(folder / "a", factor=3.0)
    (after,) = found.scan()
    assert after.name == before.name
    assert after.digest != before.digest
