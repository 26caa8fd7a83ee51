# SPDX-License-Identifier: Apache-2.0
"""The image layout keeps what is named, and no layer that nothing needs."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.bootstrap.keys import key_of
from e2e.bootstrap.static_images import write_static_image
from e2e.cluster.console import ClusterError
from e2e.cluster.layout import Layout
from e2e.cluster.settings import Settings


def _add(layout: Layout, folder: Path, ref: str, content: bytes) -> None:
    binary = folder / "program"
    binary.write_bytes(content)
    write_static_image(layout, ref, binary, architecture="amd64")


def test_images_are_listed_oldest_first_and_whole(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "layout")
    _add(layout, tmp_path, "local/a:1", b"one")
    _add(layout, tmp_path, "local/b:1", b"two")
    assert [image.ref for image in layout.images()] == ["local/a:1", "local/b:1"]
    assert layout.whole("local/a:1")
    assert not layout.whole("local/c:1")


def test_a_name_given_again_means_the_new_image(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "layout")
    _add(layout, tmp_path, "local/a:1", b"one")
    (before,) = layout.images()
    _add(layout, tmp_path, "local/a:1", b"two")
    (after,) = layout.images()
    assert before.digest != after.digest


def test_an_image_without_one_of_its_layers_is_not_whole(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "layout")
    _add(layout, tmp_path, "local/a:1", b"one")
    (image,) = layout.images()
    layout.blob(image.blobs[-1]).unlink()
    assert not layout.whole("local/a:1")


def test_keep_removes_images_and_only_the_blobs_that_they_alone_needed(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "layout")
    _add(layout, tmp_path, "local/a:1", b"one")
    _add(layout, tmp_path, "local/a:2", b"one")  # the same layer under a second name
    _add(layout, tmp_path, "local/b:1", b"two")
    assert layout.keep({"local/a:2"}) == ["local/a:1", "local/b:1"]
    assert [image.ref for image in layout.images()] == ["local/a:2"]
    assert layout.whole("local/a:2")
    assert len(list((layout.folder / "blobs").glob("*/*"))) == 3


def test_a_key_depends_on_names_and_content(tmp_path: Path) -> None:
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "a.py").write_text("x")
    before = key_of("flags", folder)
    assert key_of("flags", folder) == before
    assert key_of("flag", folder) != before
    (folder / "a.py").rename(folder / "b.py")
    assert key_of("flags", folder) != before


@pytest.mark.parametrize(
    ("name", "value", "hint"),
    [
        ("BALLAST_CLUSTER_NET", "10.89", "10.89.0"),
        ("BALLAST_CLUSTER_PROXY_MODE", "ipvs", "iptables"),
        ("BALLAST_CLUSTER_NAME", "much-too-long", "ballast"),
        ("BALLAST_CLUSTER_SHM", "2", "2g"),
    ],
)
def test_a_wrong_setting_is_named_with_an_example(name: str, value: str, hint: str) -> None:
    with pytest.raises(ClusterError, match=f"{name}={value}.*{hint}"):
        Settings.from_environment({name: value})


def test_two_clusters_can_differ_in_everything() -> None:
    one = Settings.from_environment({})
    environ = {
        "BALLAST_CLUSTER_NAME": "other",
        "BALLAST_CLUSTER_NET": "10.79.0",
        "BALLAST_CLUSTER_PODS": "10.78",
        "BALLAST_CLUSTER_SERVICES": "10.76",
        "BALLAST_CLUSTER_PORTS": "22379",
    }
    two = Settings.from_environment(environ)
    apart = ["state", "bridge", "api_url", "api_service"]
    apart += ["etcd_port", "etcd_peer_port", "scheduler_port", "controller_manager_port"]
    assert not [name for name in apart if getattr(one, name) == getattr(two, name)]
    assert one.bin == two.bin
