#!/usr/bin/env bash
# Run pytest with these arguments. Run failed tests once more, alone, after the others: a test that passes then is
# flaky, and the last lines name it with its first failure. Many failures are no chance: they aren't run again.
#
# FLAKY names a file that collects these lines, for a script that runs several suites.
set -uo pipefail
most=10
bin=$(dirname "${BASH_SOURCE[0]}")/../.venv/bin
log=$(mktemp)
trap 'rm -f "$log"' EXIT
COLUMNS=200 "$bin/python" -m pytest --cache-clear "$@" | tee "$log"
code=${PIPESTATUS[0]}
[ "$code" = 1 ] || exit "$code"
failed=$(grep -E '^(FAILED|ERROR) ' "$log")
count=$(grep -c . <<<"$failed")
if [ "$count" = 0 ] || [ "$count" -gt "$most" ]; then
  exit 1
fi
echo "Running $count failed tests once more, alone …"
"$bin/python" -m pytest "$@" -n 0 --last-failed --last-failed-no-failures none || exit 1
sed 's/^/flaky: /' <<<"$failed" | tee -a "${FLAKY:-/dev/null}"
