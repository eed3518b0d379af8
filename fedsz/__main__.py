"""``python -m fedsz``, and the command ``fedsz``."""

import sys

from fedsz.errors import MissingPackage
from fedsz.extras import explained


def main() -> None:
    """Run the command line, or say in one line which package of fedsz's own is missing for it."""
    try:
        with explained():
            from fedsz.cli import main as command
    except MissingPackage as err:
        print(f"fedsz: {err}", file=sys.stderr)
        sys.exit(2)
    command()


if __name__ == "__main__":
    main()
