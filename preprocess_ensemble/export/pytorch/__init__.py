"""The part of an export that needs PyTorch: the only place that imports torch and open_clip."""
