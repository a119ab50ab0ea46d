#!/usr/bin/env bash
# What the GitHub Action, the GitLab template and the drift job run. Needs bash, git and mzplan.
#
#   mzplan-ci.sh validate          check the files
#   mzplan-ci.sh plan DIR          plan, and leave plan.mzplan, comment.md, plan.html and summary.txt in DIR
#   mzplan-ci.sh apply DIR         apply DIR/plan.mzplan if it has the approved digest; where it is another one, or
#                                  stale: exit 5, and the plan to review is in DIR/anew.md
#   mzplan-ci.sh drift DIR         leave drift.md in DIR; exit 3 when there is drift
#
# MZPLAN_PROJECT is the project's folder (default: here), MZPLAN the command (default: mzplan),
# MZPLAN_APPLY_OPTIONS more options of apply (`--allow-replace`), MZPLAN_DIGEST the approved digest (default: what
# approved.sh or note.py has found, DIR/approved.txt), MZPLAN_STATE_CONFIG the file that `state:` is taken from
# (default: the project's mzplan.yaml), MZPLAN_ENV the environment, in a project that has some, MZPLAN_HTML_URL where a
# reader will find DIR/plan.html: the comment links to it.
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
    run plan --out "$out/plan.mzplan" --markdown "$out/comment.md" --html "$out/plan.html" \
      ${MZPLAN_HTML_URL:+--html-url "$MZPLAN_HTML_URL"} --detailed-exitcode >"$out/summary.txt" || code=$?
    cat "$out/summary.txt"
    rm -f "$out/no-changes"
    case $code in
      0) touch "$out/no-changes" && echo "nothing to change" ;;
      2 | 4) echo "changes are pending" ;;
      3) touch "$out/no-changes" && echo "no changes, but drift" ;;
      *) exit "$code" ;;
    esac
    ;;
  apply)
    out=$(folder "${2:?DIR}")
    rm -f "$out/anew.md"
    if [ -e "$out/no-changes" ]; then
      echo "nothing to change"
      exit 0
    fi
    approved=${MZPLAN_DIGEST:-$(cat "$out/approved.txt" 2>/dev/null || true)}
    code=0
    if [ -n "$approved" ]; then
      run apply "$out/plan.mzplan" --digest "$approved" ${apply_options[@]+"${apply_options[@]}"} || code=$?
    else
      echo "No digest was approved for this plan." >&2
      code=5
    fi
    if [ "$code" -eq 5 ]; then
      echo "What would be applied is not what was approved: nothing was applied. Plan and review anew." >&2
      run plan --markdown "$out/anew.md" >"$out/summary.txt" || true
    fi
    exit "$code"
    ;;
  drift)
    out=$(folder "${2:?DIR}")
    run drift --markdown "$out/drift.md" --detailed-exitcode
    ;;
  *)
    sed -n '2,15p' "$0" >&2
    exit 64
    ;;
esac
