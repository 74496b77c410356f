"""The Triton backend ``onnxruntime``, for servers without the C++ one. Nothing here may know about images."""
