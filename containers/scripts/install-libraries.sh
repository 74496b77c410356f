#!/bin/sh
# install-libraries.sh: install the system libraries of the server image. JPEG files decode faster with libturbojpeg; it
# is optional.
set -eu
apt-get update
apt-get install --yes --no-install-recommends libturbojpeg
rm -rf /var/lib/apt/lists/*
