#!/bin/bash
# Runs the three servers of the comparison until one of them ends or the container is told to stop; then stops all.
set -euo pipefail

stop() {
    local pids
    pids=$(jobs -pr)
    # shellcheck disable=SC2086 # one word for each process
    [ -z "$pids" ] || kill -TERM $pids
    wait
}
trap 'stop; exit 0' TERM INT

PYTHONPATH=$CLIP_PLAIN_PACKAGES "$CLIP_PLAIN_PYTHON" -m benchmarks.peers.baseline --host 0.0.0.0 --port 8002 &
clip-serve --repository /models-onnxruntime --host 0.0.0.0 --http-host 0.0.0.0 \
    --http-port 8010 --grpc-port 8011 --metrics-port 8012 &
clip-serve --repository /models --host 0.0.0.0 --http-host 0.0.0.0 \
    --http-port 8020 --grpc-port 8021 --metrics-port 8022 --start-timeout-s 1800 &

# If one ends, all end: the figures of an incomplete comparison would be misleading.
code=0
wait -n || code=$?
stop
exit "$code"
