"""One search by fastdup: ``python fastdup_search.py PHOTOS WORK [MODEL.onnx DIMENSION]``.

It runs in fastdup's environment and writes the figures that ``first_scan`` shows to ``WORK/result.json``. fastdup loads
its model within the search, so this is counted; its import is not.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.update(SENTRY_OPT_OUT="1", FASTDUP_PRODUCTION="1")  # no reports, and no look for a newer version

started = time.perf_counter()
import fastdup  # noqa: E402


def main() -> None:
    """Search once."""
    photos, work = sys.argv[1:3]
    model: dict[str, Any] = {"model_path": sys.argv[3], "d": int(sys.argv[4])} if sys.argv[3:] else {}
    ready, before = time.perf_counter(), os.times()
    search = fastdup.create(work_dir=work, input_dir=photos)
    search.run(overwrite=True, print_summary=False, **model)
    components, _ = search.connected_components()
    groups = 0 if components.empty else components["component_id"].nunique()
    seconds, after = time.perf_counter() - ready, os.times()
    count = len(search.annotations())
    result = {
        "photos": count,
        "groups": groups,
        "start_s": ready - started,
        "photos_per_second": count / seconds,
        "processor_ms_per_photo": 1e3 * (sum(after[:4]) - sum(before[:4])) / count,
    }
    Path(work, "result.json").write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    main()
