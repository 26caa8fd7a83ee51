# SPDX-License-Identifier: Apache-2.0
"""The exported function of a bundle: is it what the manifest and the weights say it is."""

from __future__ import annotations

from ballast_worker.bundle.reader import Bundle


def check_function(bundle: Bundle) -> None:
    """Verify the exported function against the manifest and the weights.

    Raises:
        BundleError: `BundleInvalid`.
    """
