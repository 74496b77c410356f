"""Run the plain service: ``CLIP_MODEL=ViT-B-32 python -m benchmarks.peers.baseline --port 8002``.

``CLIP_MODEL`` is open_clip's name, or the path of one of its JSON files; ``CLIP_PRETRAINED`` a tag, the path of a
checkpoint, or ``random[:SEED]``. ``CLIP_MAX_BATCH`` 1 turns batching off.
"""

from __future__ import annotations

import argparse
import os

import uvicorn

from benchmarks.peers.baseline.service import make_app

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8002)
    arguments = parser.parse_args()
    app = make_app(
        os.environ.get("CLIP_MODEL", "ViT-B-32"),
        os.environ.get("CLIP_PRETRAINED", "laion2b_s34b_b79k"),
        int(os.environ.get("CLIP_MAX_BATCH", "32")),
    )
    uvicorn.run(app, host=arguments.host, port=arguments.port, log_level="warning")
