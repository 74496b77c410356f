"""From a text to the token ids of a model, as open_clip makes them. Nothing here may import torch or transformers."""
