#!/usr/bin/env bash
# What the GitHub Action, the GitLab template and the drift job run. Needs bash, git and mzplan.
#
#   mzplan-ci.sh validate          check the files
#   mzplan-ci.sh plan DIR          plan, and leave plan.mzplan, comment.md and summary.txt in DIR
#   mzplan-ci.sh apply DIR         apply DIR/plan.mzplan; where it is stale, plan anew and say so (exit 5)
#   mzplan-ci.sh drift DIR         leave drift.md in DIR; exit 3 when there is drift
#
# MZPLAN_PROJECT is the project's folder (default: here), MZPLAN the command (default: mzplan),
# MZPLAN_APPLY_OPTIONS more options of apply (`--allow-replace`).
set -euo pipefail

project=${MZPLAN_PROJECT:-.}
read -r -a mzplan <<<"${MZPLAN:-mzplan}"
read -r -a apply_options <<<"${MZPLAN_APPLY_OPTIONS:-}"

run() { "${mzplan[@]}" -C "$project" --no-color "$@"; }

folder() { mkdir -p "$1" && (cd "$1" && pwd); }

case "${1:-}" in
  validate)
    run validate
    ;;
  plan)
    out=$(folder "${2:?DIR}")
    code=0
    run plan --out "$out/plan.mzplan" --markdown "$out/comment.md" --detailed-exitcode >"$out/summary.txt" || code=$?
    cat "$out/summary.txt"
    case $code in
      0) echo "nothing to change" ;;
      2 | 4) echo "changes are pending" ;;
      3) echo "no changes, but drift" ;;
      *) exit "$code" ;;
    esac
    ;;
  apply)
    out=$(folder "${2:?DIR}")
    code=0
    run apply "$out/plan.mzplan" ${apply_options[@]+"${apply_options[@]}"} || code=$?
    if [ "$code" -eq 5 ]; then
      echo "The reviewed plan is stale: something that it touches has changed. Plan and review anew." >&2
    fi
    exit "$code"
    ;;
  drift)
    out=$(folder "${2:?DIR}")
    run drift --markdown "$out/drift.md" --detailed-exitcode
    ;;
  *)
    sed -n '2,12p' "$0" >&2
    exit 64
    ;;
esac
