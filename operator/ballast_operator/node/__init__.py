# SPDX-License-Identifier: Apache-2.0
"""What the operator's image does on a node, as root and for a moment: prepare the folder of a host pool, and remove it."""
