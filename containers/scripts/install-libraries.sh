#!/bin/sh
# install-libraries.sh: install libturbojpeg, which decodes JPEG files faster, and leave no lists, caches and logs behind.
set -eu
apt-get update
# Its name on Ubuntu, or on Debian.
apt-get install --yes --no-install-recommends '^libturbojpeg0?$'
rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/dpkg.log
