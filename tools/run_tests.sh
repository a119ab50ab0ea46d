#!/usr/bin/env bash
# Run pytest with these arguments. Run failed tests once more, alone, after the others: a test that passes then is
# flaky, and the last lines name it with its first failure. Many failures are no chance: they aren't run again.
# Neither are those of a run in which a worker crashed, because other tests may not have run at all.
#
# FLAKY names a file that collects these lines, for a script that runs several suites.
set -uo pipefail
most=10
bin=$(dirname "${BASH_SOURCE[0]}")/../.venv/bin
log=$(mktemp)
trap 'rm -f "$log"' EXIT
# -i: an interrupted pytest still prints its summary.
COLUMNS=200 "$bin/python" -m pytest --cache-clear "$@" | tee -i "$log"
code=${PIPESTATUS[0]}
[ "$code" = 1 ] || exit "$code"
summary=$(sed -n '/^=* short test summary info =*$/,$p' "$log")
failed=$(grep -E '^(FAILED|ERROR) ' <<<"$summary")
count=$(sed -E 's/^[A-Z]+ //; s/ - .*//' <<<"$failed" | sort -u | grep -c .)
if grep -qE '^worker .gw[0-9]+. crashed' "$log" || [ "$count" = 0 ] || [ "$count" -gt "$most" ]; then
  echo "Not run once more: a worker crashed, or more than $most tests failed."
  exit 1
fi
echo "Running $count failed tests once more, alone …"
"$bin/python" -m pytest "$@" -n 0 --last-failed --last-failed-no-failures none | tee -i "$log"
[ "${PIPESTATUS[0]}" = 0 ] || exit 1
passed=$(tail -n 3 "$log" | grep -oE '[0-9]+ passed' | grep -oE '[0-9]+')
if [ "${passed:-0}" -lt "$count" ]; then
  echo "Only ${passed:-0} of them ran to their end."
  exit 1
fi
sed 's/^/flaky: /' <<<"$failed" | tee -a "${FLAKY:-/dev/null}"
