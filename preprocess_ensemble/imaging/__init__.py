"""Decode an image file to the pixels that the model takes, without Triton, ONNX or the network."""
