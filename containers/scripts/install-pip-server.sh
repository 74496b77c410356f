#!/bin/sh
# install-pip-server.sh ENVIRONMENT: add the Triton of the nvidia-pytriton wheel to an environment of install-package.sh.
#
# Only the server is used, not the wheel's Python interface, so the packages that only that needs are left out.
set -eu
cd "$(dirname "$0")/../.."
python=$1/bin/python3
pip=$(python3 -c 'import pathlib, pip; print(pathlib.Path(pip.__file__).parents[1])')
PYTHONPATH=$pip "$python" -m pip install --no-cache-dir --disable-pip-version-check --no-deps \
    nvidia-pytriton --constraint containers/constraints.txt

# The stubs for other versions of Python, and the Python 3.13 that only one of them links.
packages=$("$python" -c 'import sysconfig; print(sysconfig.get_path("platlib"))')
version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
for stub in "$packages"/pytriton/tritonserver/python_backend_stubs/*; do
    [ "${stub##*/}" = "$version" ] || rm -r "$stub"
done
rm "$packages"/nvidia_pytriton.libs/libpython*
# A second copy of ONNX Runtime for other languages than Python, and OpenVINO for devices that are no CPU.
rm -f "$packages"/onnxruntime/capi/libonnxruntime.so.*
rm -f "$packages"/openvino/libs/libopenvino_intel_gpu_plugin.so "$packages"/openvino/libs/libopenvino_intel_npu_plugin.so \
    "$packages"/openvino/libs/cache.json
find "$packages/numpy" -type d -name tests -prune -exec rm -r {} +

# Otherwise the first start would write the backend directory, which the image's user may not.
"$python" -c '
from preprocess_ensemble.tritonserver.launcher import backend_directory
from preprocess_ensemble.tritonserver.installation import find_triton
print(backend_directory(find_triton()))'
