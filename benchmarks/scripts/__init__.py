"""Scripts that measure no running system: sizes of installations, pictures of pages, a comparison of two checkouts."""
