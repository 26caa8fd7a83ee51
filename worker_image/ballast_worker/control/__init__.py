# SPDX-License-Identifier: Apache-2.0
"""The worker as a whole: lifecycle, control service, metrics, command line."""
