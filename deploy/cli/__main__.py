"""``python -m deploy.cli``: the same as the installed `chairlift`."""

import sys

from deploy.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
