"""Decides what may happen to each photo of a group. Modules here read files and results, and change nothing."""
