# SPDX-License-Identifier: Apache-2.0
"""Executables: built, run once and measured in a process of their own, stored, loaded."""
