"""What the replaced system's own study published, for the comparison in the report; nothing here was measured by us.

Its hardware was one NVIDIA A100, an RTX 4080 and up to four RTX A4000. Figures of other hardware show what a design
costs, not which is faster.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

HARDWARE: Final = "A100, RTX 4080, RTX A4000"


@dataclass(frozen=True, kw_only=True)
class Published:
    """One figure."""

    what: str
    value: float
    unit: str
    ours: str
    """Key of our own value in ``report.command.measured_here``; empty if there is none."""


FIGURES: Final = (
    Published(what="a single image, as the client saw it", value=182.9, unit="ms", ours="single_p50_ms"),
    Published(what="a single image, its other figure", value=56.9, unit="ms", ours="single_p50_ms"),
    Published(what="of that, compute", value=4.4, unit="ms", ours="single_model_ms"),
    Published(
        what="of that, spent on moving it; here: not in the model", value=91.7, unit="%", ours="single_other_percent"
    ),
    Published(what="images per second", value=64.3, unit="images/s", ours="saturated_rate"),
    Published(what="images per second on four GPUs", value=43.2, unit="images/s", ours=""),
    Published(what="requests batched", value=22.0, unit="%", ours="share_batched_percent"),
)
