"""Export an open_clip model to a checked ``model.onnx``: through PyTorch, or from a skeleton without PyTorch."""
