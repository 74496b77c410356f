#!/bin/sh
# install-package.sh TARGET [EXTRA...]: install this package with these extras into a virtual environment at TARGET.
#
# A virtual environment, because a later stage can copy it as a whole, and because the processes of Triton's Python
# backend ignore PYTHONPATH: they see only the packages of the first python3 on PATH. The image's pip installs into it, so
# the environment and the final image need no pip.
set -eu
cd "$(dirname "$0")/../.."
target=$1
shift
extras=$(IFS=,; printf '%s' "$*")

case $extras in
    # The versions of an export or the baseline follow PyTorch.
    *export* | *baseline*) set -- ".[$extras]" ;;
    # What a server needs beside Triton.
    *)
        set -- ".${extras:+[$extras]}" 'ftfy>=6.3' 'PyTurboJPEG>=1.7,<2' 'regex>=2024.4' \
            'tokenizers>=0.21' --constraint containers/constraints.txt
        ;;
esac
pip=$(python3 -c 'import pathlib, pip; print(pathlib.Path(pip.__file__).parents[1])')
python3 -m venv --without-pip "$target"
# Packages beside that pip are not in the environment, so pip must not count them as installed.
PYTHONPATH=$pip "$target/bin/python3" -m pip install \
    --no-cache-dir --disable-pip-version-check --ignore-installed "$@"
# NumPy's wheel has its tests inside.
find "$target/lib" -type d -path '*/numpy/*' -name tests -prune -exec rm -r {} +
