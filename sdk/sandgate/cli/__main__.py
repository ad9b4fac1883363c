"""`python -m sandgate.cli`: the same as `sandgate`."""

import sys

from sandgate.cli import main

if __name__ == "__main__":
    sys.exit(main())
