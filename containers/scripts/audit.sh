#!/bin/sh
# audit.sh PIP_AUDIT: look the pinned versions up among the known vulnerabilities; exit 1 where there are any.
#
# Without a way to the database nothing is known, which is said and is no failure: the answer must not depend on whether
# a build machine has a network.
set -eu
cd "$(dirname "$0")/.."
output=$("$1" --requirement constraints.txt --no-deps --disable-pip --progress-spinner off 2>&1) && code=0 || code=$?
printf '%s\n' "$output"
case $output in
    *"Found "*" known vulnerabilit"*) exit 1 ;;
    *"could not be audited"*) echo "audit.sh: not all of it was looked up, see above." ;;
    *"No known vulnerabilities found"*) echo "audit.sh: all of it was looked up." ;;
    *) echo "audit.sh: nothing was looked up (exit code $code)." ;;
esac
