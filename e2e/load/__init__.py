# SPDX-License-Identifier: Apache-2.0
"""An open-loop client: calls leave when they are due, however long earlier ones take."""
