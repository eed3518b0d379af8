"""``python -m fedsz``."""

from fedsz.cli import main

if __name__ == "__main__":
    main()
