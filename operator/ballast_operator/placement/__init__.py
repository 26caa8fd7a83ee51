# SPDX-License-Identifier: Apache-2.0
"""Which worker serves which model: pure functions."""
