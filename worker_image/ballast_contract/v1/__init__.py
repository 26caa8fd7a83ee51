# SPDX-License-Identifier: Apache-2.0
"""Protocol buffers of the control service and of the Open Inference Protocol."""
