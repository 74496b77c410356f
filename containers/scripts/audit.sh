#!/bin/sh
# audit.sh PIP_AUDIT: check the pinned versions for known vulnerabilities; exit 1 if there are any.
#
# If the database cannot be reached, that is reported and is not a failure: the result must not depend on whether a build
# machine has a network.
set -eu
cd "$(dirname "$0")/.."
output=$("$1" --requirement constraints.txt --no-deps --disable-pip --progress-spinner off 2>&1) && code=0 || code=$?
printf '%s\n' "$output"
case $output in
    *"Found "*" known vulnerabilit"*) exit 1 ;;
    *"could not be audited"*) echo "audit.sh: some packages were not checked, see above." ;;
    *"No known vulnerabilities found"*) echo "audit.sh: all of it was looked up." ;;
    *) echo "audit.sh: nothing was looked up (exit code $code)." ;;
esac
