"""Scripts that measure no running system: sizes of installations, and photos of cameras to fetch."""
