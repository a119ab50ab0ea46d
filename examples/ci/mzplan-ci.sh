#!/usr/bin/env bash
# The script of the GitHub Action, the GitLab template and the drift job. Needs bash, git and mzplan.
#
#   mzplan-ci.sh validate DIR      check the files; write validate.sarif to DIR
#   mzplan-ci.sh test DIR          run the tests of the project, if it has any; write tests.xml (JUnit) to DIR
#   mzplan-ci.sh plan DIR          plan; write plan.mzplan, comment.md, plan.html and summary.txt to DIR, and, if the
#                                  files have errors, validate.sarif
#   mzplan-ci.sh apply DIR         apply DIR/plan.mzplan if it has the approved digest; if not, or if it is stale,
#                                  exit with 5 and write the plan to review to DIR/anew.md
#   mzplan-ci.sh drift DIR         write drift.md to DIR; exit with 3 if there is drift
#
# MZPLAN_PROJECT: the project's folder (default: this one). MZPLAN: the command (default: mzplan).
# MZPLAN_APPLY_OPTIONS: more options for apply, such as --allow-replace. MZPLAN_DIGEST: the approved digest (default:
# DIR/approved.txt, from approved.sh or note.py). MZPLAN_STATE_CONFIG: the file with `state:` (default: the project's
# mzplan.yaml). MZPLAN_ENV: the environment, if the project has environments. MZPLAN_HTML_URL: the address of
# DIR/plan.html, for the link in the comment. MZPLAN_PREVIEW: if true, the comment also shows the rows that change; this
# needs Java, mzplan[runner] and a login that reads the warehouse.
set -euo pipefail

project=${MZPLAN_PROJECT:-.}
read -r -a mzplan <<<"${MZPLAN:-mzplan}"
read -r -a apply_options <<<"${MZPLAN_APPLY_OPTIONS:-}"
preview=()
if [ "${MZPLAN_PREVIEW:-}" = true ]; then preview=(--preview); fi

run() { "${mzplan[@]}" -C "$project" --no-color "$@"; }

# On GitHub, show the errors in a file beside the lines of the project's files.
annotate() {
  if [ "${GITHUB_ACTIONS:-}" = true ]; then
    "$(dirname "$0")/annotate.py" "$1" "$(git -C "$project" rev-parse --show-toplevel 2>/dev/null || pwd)"
  fi
}

# Write the diagnostics of the files to DIR/validate.sarif.
sarif() {
  run validate --sarif >"$1/validate.sarif" || true
  annotate "$1/validate.sarif"
}

folder() { mkdir -p "$1" && (cd "$1" && pwd); }

case "${1:-}" in
  validate)
    out=$(folder "${2:?DIR}")
    code=0
    run validate || code=$?
    sarif "$out"
    exit "$code"
    ;;
  test)
    out=$(folder "${2:?DIR}")
    if compgen -G "$project/tests/*.y*ml" >/dev/null; then
      rm -f "$out/tests.xml"
      code=0
      run test --junit-xml "$out/tests.xml" || code=$?
      if [ -f "$out/tests.xml" ]; then annotate "$out/tests.xml"; else sarif "$out"; fi
      exit "$code"
    else
      echo "The project has no tests."
    fi
    ;;
  plan)
    out=$(folder "${2:?DIR}")
    code=0
    run plan --out "$out/plan.mzplan" --markdown "$out/comment.md" --html "$out/plan.html" \
      ${MZPLAN_HTML_URL:+--html-url "$MZPLAN_HTML_URL"} ${preview[@]+"${preview[@]}"} --detailed-exitcode >"$out/summary.txt" || code=$?
    cat "$out/summary.txt"
    rm -f "$out/no-changes"
    case $code in
      0) touch "$out/no-changes" && echo "nothing to change" ;;
      2 | 4) echo "changes are pending" ;;
      3) touch "$out/no-changes" && echo "no changes, but drift" ;;
      *) sarif "$out" && exit "$code" ;;
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
      echo "Nothing was applied: the plan differs from the approved one. Review the new plan." >&2
      run plan --markdown "$out/anew.md" ${preview[@]+"${preview[@]}"} >"$out/summary.txt" || true
    fi
    exit "$code"
    ;;
  drift)
    out=$(folder "${2:?DIR}")
    run drift --markdown "$out/drift.md" --detailed-exitcode
    ;;
  *)
    sed -n '2,18p' "$0" >&2
    exit 64
    ;;
esac
