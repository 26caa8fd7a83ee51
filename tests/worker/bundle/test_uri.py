# SPDX-License-Identifier: Apache-2.0
"""Where a source's uri may point to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballast_worker.bundle.errors import BundleError
from ballast_worker.bundle.reader import resolve_uri


@pytest.fixture
def stores(tmp_path):
    """One store with a model, a link inside, one that leads out, and a secret beside it."""
    store = tmp_path / "store"
    (store / "team" / "model").mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    (store / "current").symlink_to("team/model")
    (store / "out").symlink_to("../secret")
    (store / "absolute").symlink_to(tmp_path / "secret")
    (store / "loop").symlink_to("loop")
    return {"models": store}


def test_paths_inside_a_store_are_found(stores):
    assert resolve_uri("pvc://models/team/model", stores) == stores["models"].resolve() / "team/model"


def test_links_that_stay_inside_a_store_are_followed(stores):
    assert resolve_uri("pvc://models/current", stores) == stores["models"].resolve() / "team/model"


def test_a_store_that_is_itself_a_link_is_followed(stores, tmp_path):
    (tmp_path / "link").symlink_to(stores["models"])
    assert resolve_uri("pvc://x/team/model", {"x": tmp_path / "link"}).name == "model"


def test_absolute_paths_are_found(stores):
    path = stores["models"].resolve() / "team/model"
    assert resolve_uri(f"file://{path}", {}) == path


@pytest.mark.parametrize("uri", ["pvc://models/out", "pvc://models/absolute"])
def test_links_that_leave_a_store_are_refused(stores, uri):
    with pytest.raises(BundleError, match="a link in its path leads out of it") as caught:
        resolve_uri(uri, stores)
    assert caught.value.reason == "BundleInvalid"


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("pvc://models/../secret", "neither empty nor '.' nor '..'"),
        ("pvc://models/team/../../secret", "neither empty nor '.' nor '..'"),
        ("pvc://models//team/model", "neither empty"),
        ("pvc://models/team/model/", "neither empty"),
        ("pvc://models/./team", "neither empty"),
        ("pvc://models/", "neither empty"),
        ("pvc://models", "neither empty"),
        ("pvc://models/team\\model", "no backslashes"),
        ("pvc://models/team\0/model", "cannot be printed"),
        ("pvc://models/team\n", "cannot be printed"),
        ("pvc://models/team?x=1", "no backslashes, '.'"),
        ("file://host/path", "three slashes after file:, as in file:///host/path"),
        ("file://path", "neither empty"),
        ("file:///", "neither empty"),
        ("file:///a/../b", "neither empty"),
        ("s3://bucket/model", "starts with file:/// or pvc://<claim>/"),
        ("http://host/model", "starts with file:///"),
        ("/abs/path", "starts with file:///"),
        ("", "starts with file:///"),
        ("pvc:/models/x", "starts with file:///"),
        ("pvc://models/" + "a/" * 2000 + "b", "4014 characters; at most 2048"),
        ("pvc://models/" + "a" * 300, "File name too long"),
        ("pvc://models/loop", "Too many levels of symbolic links"),
    ],
)
def test_other_forms_are_refused_with_the_rule(stores, uri, message):
    with pytest.raises(BundleError, match=message) as caught:
        resolve_uri(uri, stores)
    assert caught.value.reason == "BundleInvalid"


def test_missing_paths_may_appear_later(stores):
    with pytest.raises(BundleError, match="No such file or directory") as caught:
        resolve_uri("pvc://models/team/other", stores)
    assert caught.value.reason == "SourceNotFound"


def test_an_unknown_store_is_named_with_the_nearest(stores):
    with pytest.raises(BundleError, match=r"no model store 'model' .* did you mean 'models'") as caught:
        resolve_uri("pvc://model/team/model", stores)
    assert caught.value.reason == "SourceNotFound"
    with pytest.raises(BundleError, match="no model store is mounted"):
        resolve_uri("pvc://model/team/model", {})


@given(st.lists(st.sampled_from(["team", "model", "..", ".", "", "out", "absolute", "current", "a\\b"]), max_size=6))
def test_nothing_outside_a_store_is_ever_found(tmp_path_factory, parts):
    root = tmp_path_factory.getbasetemp() / "walled"
    store = root / "store"
    (store / "team" / "model").mkdir(parents=True, exist_ok=True)
    if not (store / "out").is_symlink():
        (store / "out").symlink_to("..")
        (store / "absolute").symlink_to("/")
        (store / "current").symlink_to("team/model")
    try:
        found = resolve_uri("pvc://s/" + "/".join(parts), {"s": store})
    except BundleError:
        return
    assert found.is_relative_to(store.resolve())
