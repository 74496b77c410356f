"""A small CLIP: an open_clip config that exports in seconds with random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Final

TINY_CLIP: Final = Path(__file__).with_name("tiny_clip.json")
"""The config file, for ``clip-export --model``."""
