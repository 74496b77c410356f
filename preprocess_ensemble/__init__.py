"""The parts that run inside Triton, and the tools that build, check and start them."""

import os

# Without this, ONNX Runtime's builds for Linux report to Microsoft. The variable is read at the first import.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
