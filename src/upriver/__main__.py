"""``python -m upriver``: the command ``upriver``, if scripts are not on the path."""

import sys

from upriver.cli import main

if __name__ == "__main__":
    sys.exit(main())
