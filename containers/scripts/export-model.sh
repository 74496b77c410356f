#!/bin/sh
# export-model.sh PACKAGES REPOSITORY MODEL PRETRAINED PRECISION: make the model that the image serves.
# clip-export checks it against PyTorch before it puts it in place, so a model that does not agree fails the build.
set -eu
PYTHONPATH=$1
PATH=$1/bin:$PATH
export PYTHONPATH PATH
exec clip-export --repository "$2" --model "$3" --pretrained "$4" --precision "$5"
