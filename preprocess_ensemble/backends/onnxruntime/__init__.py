"""The Triton backend ``onnxruntime`` for servers without the C++ one; it knows tensors and sessions, and no image."""
