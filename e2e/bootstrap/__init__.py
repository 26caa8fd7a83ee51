# SPDX-License-Identifier: Apache-2.0
"""What a bare machine needs to run the local cluster and the tests: packages, environment, binaries and images."""
