"""Pairs of photos that show the same picture, proofs of copies, the choice of the photo to keep, and the groups."""
