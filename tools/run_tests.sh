#!/usr/bin/env bash
# Run pytest with these arguments, then run failed tests once more, alone. A test that passes the second time is flaky:
# the last lines name it with its first failure. If more than ten tests fail, or a worker crashes, nothing runs again:
# so many failures aren't random, and after a crash other tests may not have run.
#
# FLAKY: a file that collects the lines about flaky tests, for a script that runs several suites.
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
  echo "Not rerun: a worker crashed, or more than $most tests failed."
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
