#!/bin/sh
# install-package.sh TARGET [EXTRA...]: install this package and the extras named into a virtual environment at TARGET.
#
# A virtual environment, because a later stage can copy it whole, and because the processes of Triton's Python backend
# ignore PYTHONPATH: they see the packages of the python3 that is first on PATH, and no others. The image's pip installs
# into it; the environment has none of its own, and the final image needs none.
set -eu
cd "$(dirname "$0")/../.."
target=$1
shift
extras=$(IFS=,; printf '%s' "$*")

# Without an extra this is the server, whose versions are pinned. An export or the baseline follows PyTorch instead.
if [ -z "$extras" ]; then
    set -- . 'psutil>=6' 'PyTurboJPEG>=1.7,<2' --constraint containers/constraints.txt
else
    set -- ".[$extras]"
fi
pip=$(python3 -c 'import pathlib, pip; print(pathlib.Path(pip.__file__).parents[1])')
python3 -m venv --without-pip "$target"
# What lies beside that pip is not in the environment, so nothing there counts as installed.
PYTHONPATH=$pip exec "$target/bin/python3" -m pip install \
    --no-cache-dir --disable-pip-version-check --ignore-installed "$@"
