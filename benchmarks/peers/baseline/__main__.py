"""Run the plain service: ``CLIP_MODEL=ViT-B-32 python -m benchmarks.peers.baseline --port 8002``."""

from __future__ import annotations

import argparse
import logging
import os
import sys

import uvicorn
from pydantic import ValidationError

from benchmarks.peers.baseline.service import Settings, make_app


def main() -> int:
    """Serve until a signal; return 2 if a setting is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8002)
    arguments = parser.parse_args()
    # open_clip logs a warning about random weights; /healthz and /model name the weights.
    logging.basicConfig(level=logging.ERROR)
    try:
        settings = Settings.model_validate(dict(os.environ))
    except ValidationError as error:
        for one in error.errors():
            print(f"plain service: {one['loc'][0]}: {one['msg']}", file=sys.stderr)
        return 2
    uvicorn.run(make_app(settings), host=arguments.host, port=arguments.port, log_level="warning")
    return 0


if __name__ == "__main__":
    sys.exit(main())
