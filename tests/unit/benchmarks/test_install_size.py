"""Which installations are measured; setup.cfg has the extras."""

from __future__ import annotations

from benchmarks.scripts.install_size import EXTRAS
from tests.fixtures.packaging.extras import extras


def test_every_extra_for_users_is_measured() -> None:
    packages = extras()
    measured = [set().union(*(packages[name] for name in one.split(",") if name)) for one in EXTRAS]
    missing = {name for name in packages if not any(packages[name] <= one for one in measured)}
    assert missing == {"baseline", "bench", "dev", "gpu", "tracing"}
