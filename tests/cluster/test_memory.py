# SPDX-License-Identifier: Apache-2.0
"""Memory that containers and pods share: volumes in memory, and a node's own /dev/shm."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.cluster.commands import run
from e2e.cluster.kube import Kube
from e2e.cluster.nodes import Node

pytestmark = pytest.mark.cluster

_SHARE = """
import mmap, os, sys, time
path, first = sys.argv[1], sys.argv[2] == "first"
if first:
    with open(path + ".new", "wb") as file:
        file.truncate(1 << 20)
    os.rename(path + ".new", path)
while not os.path.exists(path):
    time.sleep(0.05)
with open(path, "r+b") as file:
    shared = mmap.mmap(file.fileno(), 1 << 20)
shared[0 if first else 4096] = 7
while not shared[0] == shared[4096] == 7:
    time.sleep(0.05)
print("both pages seen", flush=True)
time.sleep(3600)
"""


@pytest.fixture(scope="module")
def share(kube: Kube) -> Kube:
    kube.run("create", "configmap", "share", f"--from-literal=share.py={_SHARE}")
    return kube


def _container(image: str, who: str, folder: str) -> str:
    return (
        f"{{name: {who}, image: '{image}', command: [python, /share/share.py, {folder}/x, {who}], volumeMounts: "
        f"[{{name: memory, mountPath: {folder}}}, {{name: share, mountPath: /share}}]}}"
    )


def _sees_both_pages(kube: Kube, pod: str, container: str | None = None) -> None:
    kube.until(f"{pod} sees both pages", lambda: "both pages" in kube.logs(pod, container), seconds=20)


def test_containers_of_a_pod_share_a_volume_in_memory_of_bounded_size(share: Kube, image: str) -> None:
    share.apply(f"""
apiVersion: v1
kind: Pod
metadata: {{name: both}}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{_container(image, "first", "/memory")}, {_container(image, "second", "/memory")}]
  volumes:
  - {{name: memory, emptyDir: {{medium: Memory, sizeLimit: 64Mi}}}}
  - {{name: share, configMap: {{name: share}}}}
""")
    share.ready("both")
    for who in ("first", "second"):
        _sees_both_pages(share, "both", who)
    assert share.exec("both", "df", "-k", "--output=size", "/memory", container="first").split()[1] == "65536"
    full = share.run(
        "exec", "both", "-c", "first", "--", "dd", "if=/dev/zero", "of=/memory/y", "bs=1M", "count=80", check=False
    )
    assert "No space left" in full.stderr


def test_pods_of_a_node_share_its_memory_and_nobody_else_sees_it(share: Kube, image: str) -> None:
    folder = Path("/dev/shm") / share.namespace
    nodes = [Node(share.settings, number) for number in (1, 2)]
    run(share.settings, *nodes[0].inside("mkdir", "-m", "1777", folder))
    for who in ("first", "second"):
        share.apply(f"""
apiVersion: v1
kind: Pod
metadata: {{name: {who}}}
spec:
  nodeName: {share.settings.node_name(1)}
  terminationGracePeriodSeconds: 0
  containers: [{_container(image, who, "/host")}]
  volumes:
  - {{name: memory, hostPath: {{path: {folder}, type: Directory}}}}
  - {{name: share, configMap: {{name: share}}}}
""")
    try:
        share.ready("first", "second")
        for who in ("first", "second"):
            _sees_both_pages(share, who)
        assert run(share.settings, *nodes[0].inside("ls", folder)).stdout == "x\n"
        assert not folder.exists()
        assert run(share.settings, *nodes[1].inside("ls", folder), check=False).returncode
    finally:
        run(share.settings, *nodes[0].inside("rm", "-rf", folder))


def test_each_node_has_a_dev_shm_of_the_size_asked_for(share: Kube) -> None:
    for number in (1, 2):
        size = run(share.settings, *Node(share.settings, number).inside("df", "-k", "--output=size", "/dev/shm"))
        assert int(size.stdout.split()[1]) == int(share.settings.shm.removesuffix("g")) << 20
