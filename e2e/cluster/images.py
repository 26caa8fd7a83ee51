# SPDX-License-Identifier: Apache-2.0
"""Giving images to a node: only the layers that it lacks travel, so a code change costs about a second."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import tarfile
import time
from collections.abc import Iterable
from pathlib import Path

from e2e.cluster.commands import environment, run
from e2e.cluster.console import ClusterError, say
from e2e.cluster.layout import Image, Layout
from e2e.cluster.nodes import Node
from e2e.cluster.settings import REGISTRY, Settings


def available(settings: Settings) -> list[Image]:
    """Return the images that nodes are given."""
    return Layout(settings.images).images()


def give(node: Node, images: Iterable[Image]) -> None:
    """Import the images that the node lacks or has under another digest."""
    has, layout = _targets(node), Layout(node.settings.images)
    for image in images:
        if has.get(image.ref) != image.digest:
            started = time.monotonic()
            with layout.locked(alone=False):
                if not layout.whole(image.ref):
                    continue  # a newer version has taken its place since the layout was read
                sent = _stream(node, image, lacking=set(image.blobs) - _blobs(node))
            say(f"{node.name}: image {image.ref}, {sent >> 20} MiB in {time.monotonic() - started:.1f} s")


def seed(first: Node, others: Iterable[Node], images: Iterable[Image]) -> None:
    """Give nodes that have no images yet what the first one has, with links instead of a second import.

    Layers are never written again once they are unpacked, so nodes can share their files; the databases they copy.
    Neither containerd may run meanwhile, so this is for nodes that have just been made.
    """
    bare = [node for node in others if not any(node.store.iterdir())]
    if not bare:
        return
    first.containerd_up(new=True)
    give(first, images)
    first.processes.stop(f"{first.name}.containerd")
    for node in bare:
        started = time.monotonic()
        run(node.settings, "cp", "--archive", "--link", f"{first.store}/.", node.store)
        for database in first.store.glob("*/*.db"):
            copy = node.store / database.relative_to(first.store)
            copy.unlink()
            shutil.copy2(database, copy)
        say(f"{node.name}: images of {first.name} linked in {time.monotonic() - started:.1f} s")


def forget(node: Node, images: Iterable[Image]) -> None:
    """Remove the project's images that are built no more and that no container of the node uses."""
    wanted = {image.ref for image in images}
    used = set(node.ctr("containers", "list").stdout.split())
    old = [ref for ref in _targets(node) if ref.startswith(f"{REGISTRY}/") and ref not in wanted and ref not in used]
    if old:
        node.ctr("images", "remove", *old)


def load_file(node: Node, file: Path) -> None:
    """Import an archive that someone else made, in the format of Docker or of OCI."""
    if not file.is_file():
        raise ClusterError(f"{file}: no such file; give an archive made by `docker save` or `buildah push`")
    run(node.settings, *node.ctr_command("images", "import", file))
    say(f"{node.name}: imported {file.name}")


def _targets(node: Node) -> dict[str, str]:
    """Return the digests of the node's images by name."""
    rows = [line.split() for line in node.ctr("images", "list").stdout.splitlines()[1:]]
    return {row[0]: row[2] for row in rows}


def _blobs(node: Node) -> set[str]:
    return set(node.ctr("content", "list", "--quiet").stdout.split())


def _stream(node: Node, image: Image, *, lacking: set[str]) -> int:
    """Write an archive of the blobs that are lacking into containerd's client; return its size.

    containerd asks an archive for no blob that it has already, and unpacks no layer that it has unpacked.
    """
    layout = Layout(node.settings.images)
    # The manifest goes along in any case: an archive must hold what its index names.
    blobs = [blob for blob in image.blobs if blob in lacking or blob == image.digest]
    entry = image.entry | {"annotations": {"io.containerd.image.name": image.ref}}
    index = {"schemaVersion": 2, "manifests": [entry]}
    command = [str(word) for word in node.ctr_command("images", "import", "-")]
    environ = environment(node.settings)
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environ
    ) as process:
        if process.stdin is None or process.stdout is None:
            raise ClusterError("the pipe to ctr is missing")  # cannot be: both were asked for
        failed = ""
        try:
            with tarfile.open(fileobj=process.stdin, mode="w|", bufsize=1 << 20) as archive:
                _add(archive, "oci-layout", json.dumps({"imageLayoutVersion": "1.0.0"}).encode())
                for blob in blobs:
                    archive.add(layout.blob(blob), arcname=f"blobs/{blob.replace(':', '/')}")
                _add(archive, "index.json", json.dumps(index).encode())
            process.stdin.close()
        except BrokenPipeError:
            failed = "it ended before the archive did"
        output = process.stdout.read().decode(errors="replace")
    if failed or process.returncode:
        raise ClusterError(f"{node.name}: importing {image.ref} failed ({process.returncode}) {failed}\n{output}")
    return sum(layout.blob(blob).stat().st_size for blob in blobs)


def _add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    archive.addfile(info, io.BytesIO(data))
