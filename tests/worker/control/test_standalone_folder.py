# SPDX-License-Identifier: Apache-2.0
"""The models of a worker that stands alone: listed ones and every bundle of a folder, found again when it changes."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest
from helpers.small_bundles import pack_small

from ballast_worker.bundle.errors import BundleError
from ballast_worker.control.assignment import AssignmentError
from ballast_worker.control.preparation import inspect
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


def pipe(path):
    os.mkfifo(path)


def endless(path):
    path.symlink_to("/dev/zero")


def directory(path):
    path.mkdir()


def long(path):
    path.write_bytes(b"#" * ((1 << 20) + 1))


@pytest.mark.parametrize("something", [pipe, endless, directory, long])
def test_a_manifest_that_is_no_small_file_is_listed_unread_and_refused_by_whoever_opens_it(
    folder, config_for, something
):
    good = pack_small(folder / "good")
    (folder / "odd").mkdir()
    something(folder / "odd" / "manifest.yaml")
    models = Folder(config_for(model_directory=str(folder))).scan()
    assert [(model.name, model.digest) for model in models] == [("good", good.digest), ("odd", "")]
    with pytest.raises(BundleError) as caught:
        inspect(models[1].uri, models[1].digest, {})
    assert caught.value.reason == "BundleInvalid"


def test_a_name_that_is_not_utf_8_is_left_out_and_told_of_once(folder, config_for, caplog):
    pack_small(folder / "good")
    odd = os.fsencode(folder) + b"/caf\xe9"
    shutil.copytree(folder / "good", os.fsdecode(odd))
    found = Folder(config_for(model_directory=str(folder)))
    assert names(found.scan()) == names(found.scan()) == ["good"]
    assert [record.getMessage() for record in caplog.records] == [
        "the folder 'caf\\udce9' in modelDirectory is not served: its name is not UTF-8; rename it"
    ]


def test_a_folder_whose_own_name_is_not_utf_8_is_refused(tmp_path, config_for):
    root = os.fsdecode(os.fsencode(tmp_path) + b"/\xff")
    Path(root).mkdir()
    with pytest.raises(AssignmentError, match="is not UTF-8: rename it"):
        Folder(config_for(model_directory=root)).scan()


@pytest.fixture
def failing(folder, monkeypatch):
    """Opening the directory of model `a` fails as the test says; root, who may run the tests, is never refused."""
    really = os.open

    def fail_with(number):
        def opening(path, *given, **also):
            if number and path == str(folder / "a"):
                raise OSError(number, os.strerror(number), path)
            return really(path, *given, **also)

        monkeypatch.setattr(os, "open", opening)

    return fail_with


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ESTALE])
def test_a_bundle_that_cannot_be_read_is_listed_and_refused_in_words(folder, config_for, failing, number):
    pack_small(folder / "a")
    failing(number)
    (model,) = Folder(config_for(model_directory=str(folder))).scan()
    assert (model.name, model.digest) == ("a", "")
    with pytest.raises(BundleError, match=os.strerror(number)) as caught:
        inspect(model.uri, model.digest, {})
    assert caught.value.reason == "SourceNotFound"


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ESTALE])
def test_what_cannot_be_read_any_more_stays_the_model_that_it_was(folder, config_for, failing, number):
    pack_small(folder / "a")
    found = Folder(config_for(model_directory=str(folder)))
    before = found.scan()
    failing(number)
    assert found.scan() == before
    failing(0)
    replaced = pack_small(folder / "a", factor=7.0)
    assert found.scan()[0].digest == replaced.digest


def test_what_is_not_there_any_more_is_no_model(folder, config_for, failing):
    pack_small(folder / "a")
    found = Folder(config_for(model_directory=str(folder)))
    assert names(found.scan()) == ["a"]
    failing(errno.ENOENT)
    assert found.scan() == ()


def test_a_served_bundle_whose_manifest_becomes_something_else_is_another_spec(folder, config_for):
    pack_small(folder / "a")
    found = Folder(config_for(model_directory=str(folder)))
    found.scan()
    (folder / "a" / "manifest.yaml").unlink()
    os.mkfifo(folder / "a" / "manifest.yaml")
    assert found.scan()[0].digest == ""


def test_the_folder_of_the_file_system_itself_is_no_model(folder, config_for):
    (folder / "lost+found").mkdir()
    (folder / "lost+found" / "manifest.yaml").touch()
    assert Folder(config_for(model_directory=str(folder))).scan() == ()
