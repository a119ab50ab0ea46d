#!/usr/bin/env bash
# Find the approved digest: the digest in this user's last comment on the pull request that a commit merged.
#
#   approved.sh REPOSITORY COMMIT DIR      reads DIR/comment.md, which `mzplan-ci.sh plan DIR` wrote for the commit;
#                                          writes number.txt and approved.txt in DIR, empty if there are none
set -euo pipefail

repository=${1:?OWNER/NAME} commit=${2:?COMMIT} out=${3:?DIR}
marker=$(head -n 1 "$out/comment.md")
number=$(gh api "repos/$repository/commits/$commit/pulls" \
  --jq ".[] | select(.merge_commit_sha == \"$commit\") | .number" | head -n 1)
echo "$number" >"$out/number.txt"
: >"$out/approved.txt"
[ -n "$number" ] || exit 0
author=$(gh api graphql --field "query={viewer{login}}" --jq .data.viewer.login)
# If the last comment has no digest, its plan had no changes; then older comments don't count.
gh api --paginate "repos/$repository/issues/$number/comments" \
  --jq ".[] | select(.user.login == \"${author:?}\" and (.body | startswith(\"$marker\")))
    | (.body | capture(\"\\nDigest: \`(?<digest>sha256:[0-9a-f]{64})\`\").digest) // \"none\"" |
  tail -n 1 | sed '/^none$/d' >"$out/approved.txt"
