# SPDX-License-Identifier: Apache-2.0
"""What is on which tier and why: admission, eviction, loads, compaction."""
