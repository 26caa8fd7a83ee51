# SPDX-License-Identifier: Apache-2.0
"""The folder of a host pool on a node: prepared for a group, and removed."""

from __future__ import annotations

import os
import stat

import pytest

from ballast_operator.node.__main__ import main
from ballast_operator.node.folder import FolderError, prepare, remove

NAME = "ns.default.uid"


@pytest.fixture
def pools(tmp_path):
    found = tmp_path / "ballast"
    found.mkdir(mode=0o755)
    return found


@pytest.fixture
def group():
    return os.getegid()


@pytest.mark.parametrize(("files", "folder"), [(0o660, 0o2770), (0o600, 0o2770), (0o664, 0o2775), (0o644, 0o2775)])
def test_the_group_may_change_the_folder_and_others_may_list_it_where_they_may_read_files(pools, group, files, folder):
    prepare(pools, NAME, group=group, file_mode=files)
    status = (pools / NAME).stat()
    assert stat.S_IMODE(status.st_mode) == folder
    assert (status.st_uid, status.st_gid) == (os.geteuid(), group)


def test_a_folder_that_is_there_is_put_right_and_keeps_what_is_in_it(pools, group):
    (pools / NAME).mkdir(mode=0o777)
    (pools / NAME / "table").write_bytes(b"x")
    prepare(pools, NAME, group=group, file_mode=0o660)
    assert stat.S_IMODE((pools / NAME).stat().st_mode) == 0o2770
    assert (pools / NAME / "table").read_bytes() == b"x"


def test_a_folder_of_pools_that_others_may_write_to_is_not_trusted(pools, group):
    pools.chmod(0o777)
    for change in (lambda: prepare(pools, NAME, group=group, file_mode=0o660), lambda: remove(pools, NAME)):
        with pytest.raises(FolderError, match="mode 0777"):
            change()


def test_a_link_in_place_of_the_folder_is_not_followed(pools, group, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "precious").write_bytes(b"x")
    (pools / NAME).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FolderError):
        prepare(pools, NAME, group=group, file_mode=0o660)
    with pytest.raises(FolderError):
        remove(pools, NAME)
    assert (tmp_path / "elsewhere" / "precious").exists()


def test_a_pool_is_removed_with_everything_in_it_and_the_others_stay(pools, group):
    for name in (NAME, "ns.other.uid"):
        prepare(pools, name, group=group, file_mode=0o660)
        (pools / name / "segment-000001").write_bytes(b"x")
    assert main(["remove", str(pools), NAME]) == 0
    assert main(["remove", str(pools), NAME]) == 0
    assert [path.name for path in pools.iterdir()] == ["ns.other.uid"]


def test_what_cannot_be_done_is_said_in_a_sentence(pools, capsys, tmp_path):
    missing = tmp_path / "missing"
    assert main(["prepare", str(missing), NAME, "--group", "1", "--file-mode", "0660"]) == 1
    assert f"{missing} cannot be opened" in capsys.readouterr().err
