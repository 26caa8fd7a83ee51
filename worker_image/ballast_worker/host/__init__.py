# SPDX-License-Identifier: Apache-2.0
"""Host copies of weights."""
