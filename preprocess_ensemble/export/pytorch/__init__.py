"""The part of an export that needs PyTorch; only modules here import torch and open_clip."""
