"""``python -m clip_client`` is ``clip-client``."""

import sys

from clip_client.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
