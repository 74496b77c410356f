"""Paths of the tree and of the files beside it."""

from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]
