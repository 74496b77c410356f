"""How two photos lie on each other, and what differs: keypoints, their alignment, and the comparison of what remains.
Only its aligner reads files."""
