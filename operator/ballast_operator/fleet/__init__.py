# SPDX-License-Identifier: Apache-2.0
"""Control channels to the workers, and what the workers last reported."""
