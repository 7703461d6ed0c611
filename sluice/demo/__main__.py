"""`python -m sluice.demo`."""

import sys

from sluice.demo import main

sys.exit(main(sys.argv[1:]))
