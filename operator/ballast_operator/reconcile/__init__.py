# SPDX-License-Identifier: Apache-2.0
"""From what is wanted and what is observed to what has to be done: one file per concern."""
