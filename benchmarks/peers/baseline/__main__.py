"""Run the plain service: ``CLIP_MODEL=ViT-B-32 python -m benchmarks.peers.baseline --port 8002``."""

from __future__ import annotations

import argparse
import logging
import sys

import uvicorn

from benchmarks.peers.baseline.service import SettingError, Settings, make_app


def main() -> int:
    """Serve until a signal; return 2 if a setting is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8002)
    arguments = parser.parse_args()
    # open_clip logs a warning about random weights; /healthz and /model name the weights.
    logging.basicConfig(level=logging.ERROR)
    try:
        settings = Settings.from_environment()
    except SettingError as error:
        print(f"plain service: {error}", file=sys.stderr)
        return 2
    uvicorn.run(make_app(settings), host=arguments.host, port=arguments.port, log_level="warning")
    return 0


if __name__ == "__main__":
    sys.exit(main())
