"""What a review knows and does: the groups, the choices about them, and carrying these out. Nothing here knows HTTP."""
