"""Proof that two photos show the same: keypoints, their alignment, and the comparison of what remains. Nothing here
reads a file, and only this room imports OpenCV."""
