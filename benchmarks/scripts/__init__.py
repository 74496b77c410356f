"""Scripts that measure no running system: sizes of installations and pictures of pages."""
