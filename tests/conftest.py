"""For all tests: hypothesis judges what is true, never how long it took; processes start as they should."""

import os

from hypothesis import settings

# gRPC as of 1.81 ends a child between fork and exec (its issue 43055): once a test has used it, none gets a JVM.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")

settings.register_profile("sluice", deadline=None)
settings.load_profile("sluice")
