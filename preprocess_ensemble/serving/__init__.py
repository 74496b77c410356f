"""Starts, watches and stops a real ``tritonserver``. No code here reads images or weights."""
