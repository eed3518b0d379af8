"""``python -m benchmarks.paper``, in a checkout: the same as ``fedsz paper``."""

import sys

from fedsz.cli import main

sys.argv.insert(1, "paper")
main()
