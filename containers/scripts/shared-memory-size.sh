#!/bin/sh
# shared-memory-size.sh MAX_BATCH_SIZE LARGEST_IMAGE_BYTES PIXEL_BYTES: bytes that /dev/shm needs.
#
# The Python backend puts a whole batch of the preprocessor into shared memory: the encoded files that come in and the
# pixels that go out. Half as much again for gaps between blocks, and 64 MiB for the regions themselves.
set -eu
if [ $# != 3 ] || [ -n "$(printf %s "$*" | tr -d '0-9 ')" ]; then
    echo "usage: shared-memory-size.sh MAX_BATCH_SIZE LARGEST_IMAGE_BYTES PIXEL_BYTES" >&2
    exit 2
fi
printf '%s\n' $((64 * 1024 * 1024 + $1 * ($2 + $3) * 3 / 2))
