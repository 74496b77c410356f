#!/bin/sh
# export-model.sh ENVIRONMENT REPOSITORY MODEL PRETRAINED PRECISION: export the model that the image serves.
# clip-export compares it with PyTorch before it installs it, so a model that does not agree fails the build.
set -eu
exec "$1/bin/clip-export" --repository "$2" --model "$3" --pretrained "$4" --precision "$5"
