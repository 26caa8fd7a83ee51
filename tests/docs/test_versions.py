# SPDX-License-Identifier: Apache-2.0
"""Every command says its version."""

from __future__ import annotations

import pytest

from ballast_contract import __version__
from ballast_operator.edge import arguments, plugin, simulate
from ballast_worker.bundle import cli
from ballast_worker.control import main


@pytest.mark.parametrize(
    ("parser", "name"),
    [
        (main.command_line(), "ballast-worker"),
        (cli.command_line(), "ballast-bundle"),
        (simulate.command_line(), "ballast-simulate"),
        (plugin.command_line(), "kubectl-ballast"),
        (arguments.command_line({}), "ballast-operator"),
    ],
)
def test_a_command_says_its_version(parser, name, capsys):
    with pytest.raises(SystemExit) as ended:
        parser.parse_args(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"{name} {__version__}\n"
