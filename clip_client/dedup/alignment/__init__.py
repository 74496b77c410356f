"""Proof that two photos show the same: keypoints, their alignment, and the comparison of what remains. Only this room
imports OpenCV, and only its aligner reads files."""
