"""The Triton backend ``onnxruntime``, for servers without the C++ backend of that name."""
