#!/bin/sh
# install-package.sh TARGET [EXTRA...]: install this package and the extras named into the folder TARGET.
#
# Into a folder of its own instead of the system's Python: a later stage can copy it whole, the image's own packages stay
# as they are, and distributions that mark their Python as externally managed do not mind.
set -eu
cd "$(dirname "$0")/../.."
target=$1
shift
extras=$(IFS=,; printf '%s' "$*")

# Without an extra this is the server, whose versions are pinned. An export or the baseline follows PyTorch instead.
if [ -z "$extras" ]; then
    set -- . 'PyTurboJPEG>=1.7,<2' --constraint containers/constraints.txt
else
    set -- ".[$extras]"
fi
exec python3 -m pip install --no-cache-dir --disable-pip-version-check --target "$target" "$@"
