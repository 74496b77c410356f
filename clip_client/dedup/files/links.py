"""What the links that a search met mean for its files."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, kw_only=True)
class Links:
    """Symbolic links to files, photos that only they reach, and photos with further hard links."""

    by_target: Mapping[str, str] = field(default_factory=dict)
    """Real path of a file -> a symbolic link that leads to it. Moving the file would leave that link dangling."""
    only_by_link: frozenset[str] = frozenset()
    """Paths of photos that were reached by a link only: the files themselves lie outside what was searched."""
    hard_linked: frozenset[str] = frozenset()
    """Paths of photos that have other names, here or anywhere on their file system: removing one name frees nothing."""

    def to(self, path: str) -> str:
        """Return a symbolic link that leads to the file at ``path``; empty if the search met none."""
        return self.by_target.get(os.path.realpath(path), "") if self.by_target else ""
