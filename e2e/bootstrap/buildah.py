# SPDX-License-Identifier: Apache-2.0
"""Building images without a daemon, and laying them out for the nodes."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from e2e.bootstrap.tools import Home, output_of, run_logged
from e2e.cluster.console import ClusterError
from e2e.cluster.layout import Layout

_MOST_IMAGES = 100  # intermediate ones included; beyond that those of past builds go


class Buildah:
    """Runs buildah with a storage of its own, apart from what else the machine builds."""

    def __init__(self, home: Home) -> None:
        self.home = home

    def command(self, *argv: object) -> list[object]:
        """Return a buildah command for this storage."""
        root = self.home.folder / "containers"
        return ["buildah", "--root", root, "--runroot", "/run/ballast-build", "--storage-driver", "overlay", *argv]

    def exists(self, ref: str) -> bool:
        """Whether the storage has an image of this name."""
        return bool(output_of(*self.command("images", "--quiet", ref)))

    def build(self, log: str, ref: str, *argv: object, context: Path) -> None:
        """Build an image in a chroot and on this machine's network.

        The pip inside sees the certificates that this machine trusts and its settings, and neither is left in the image.
        """
        (self.home.logs / f"{log}.log").unlink(missing_ok=True)
        settings = [path for path in ("/etc/ssl/certs", "/etc/pip.conf") if Path(path).exists()]
        mounts = [word for path in settings for word in ("--volume", f"{path}:{path}:ro")]
        where = ["--isolation", "chroot", "--network", "host", "--force-rm"]
        run_logged(self.home, log, *self.command("bud", *where, *mounts, "--tag", ref, *argv, "."), cwd=context)

    def lay_out(self, log: str, ref: str, layout: Layout) -> None:
        """Copy an image to a layout.

        A push to a layout compresses what it writes, which would take longer than all else together, and takes layers
        that are there as they are. So the large ones are put there first, by way of a folder, as plain tar files.
        """
        (layout.folder / "blobs" / "sha256").mkdir(parents=True, exist_ok=True)
        shown = output_of(*self.command("inspect", "--type", "image", ref))
        if not shown:
            raise ClusterError(f"buildah does not know {ref}, which it just built; see {self.home.logs / log}.log")
        *below, _ = json.loads(shown)["OCIv1"]["rootfs"]["diff_ids"]
        if not all(layout.blob(digest).exists() for digest in below):
            with tempfile.TemporaryDirectory(dir=self.home.images) as folder:
                plain = ["push", "--quiet", "--disable-compression", ref, f"dir:{folder}"]
                run_logged(self.home, log, *self.command(*plain))
                for digest in below:
                    Path(folder, digest.removeprefix("sha256:")).replace(layout.blob(digest))
        run_logged(self.home, log, *self.command("push", "--quiet", ref, f"oci:{layout.folder}:{ref}"))

    def remove(self, refs: list[str]) -> None:
        """Remove images, and what past builds have piled up."""
        for ref in refs:
            output_of(*self.command("rmi", "--force", ref))
        if len(output_of(*self.command("images", "--all", "--quiet")).splitlines()) > _MOST_IMAGES:
            output_of(*self.command("rmi", "--prune"))
