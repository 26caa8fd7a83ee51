# SPDX-License-Identifier: Apache-2.0
"""Ports of API servers that start at the same time, here or in another process, are never the same."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from e2e.cluster import apiserver
from e2e.cluster.console import ClusterError

ROOT = Path(__file__).resolve().parents[2]
_CLAIM = """
from e2e.cluster import apiserver
apiserver._PORTS = range(*map(int, input().split()))
with apiserver._free_ports(2) as ports:
    print(*ports, flush=True)
    input()
"""


@pytest.fixture
def six(monkeypatch: pytest.MonkeyPatch) -> range:
    """Six ports of which nothing is taken, to choose from."""
    with apiserver._free_ports(1) as [start]:
        found = next(six for first in range(start, 32_000, 6) if _all_free(six := range(first, first + 6)))
    monkeypatch.setattr(apiserver, "_PORTS", found)
    return found


def _all_free(ports: range) -> bool:
    with ExitStack() as probes:
        try:
            for port in ports:
                probes.enter_context(socket.socket()).bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


@contextmanager
def _another_process(among: range) -> Iterator[set[int]]:
    """Two ports, claimed by a process that has not bound them yet."""
    with subprocess.Popen(
        [sys.executable, "-c", _CLAIM], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(f"{among.start} {among.stop}\n")
        process.stdin.flush()
        yield set(map(int, process.stdout.readline().split()))
        process.kill()


def test_ports_are_given_once_until_their_block_or_process_has_ended(six: range) -> None:
    with _another_process(six) as theirs, apiserver._free_ports(2) as ours, apiserver._free_ports(2) as others:
        assert theirs | {*ours} | {*others} == {*six}
        with pytest.raises(ClusterError, match="all but 0 are taken"), apiserver._free_ports(1):
            pass
    with apiserver._free_ports(6) as all_of_them:
        assert {*all_of_them} == {*six}


def test_a_port_on_which_somebody_listens_is_given_to_nobody(six: range) -> None:
    with socket.socket() as somebody:
        somebody.bind(("127.0.0.1", six.start))
        with apiserver._free_ports(5) as found:
            assert {*found} == {*six[1:]}


def test_ports_are_below_those_that_the_kernel_gives_to_clients() -> None:
    first, _ = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    assert apiserver._PORTS.stop <= int(first)
