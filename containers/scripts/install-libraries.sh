#!/bin/sh
# install-libraries.sh PACKAGE...: install system libraries, and leave no lists, caches and logs behind.
set -eu
apt-get update
apt-get install --yes --no-install-recommends "$@"
rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/dpkg.log
