#!/usr/bin/env bash
# What was approved: the digest that this user's last comment showed on the pull request which a commit has merged.
#
#   approved.sh REPOSITORY COMMIT DIR      DIR/comment.md is the plan of the commit (of `mzplan-ci.sh plan DIR`);
#                                          leaves number.txt and approved.txt in DIR, empty where there is none
set -euo pipefail

repository=${1:?OWNER/NAME} commit=${2:?COMMIT} out=${3:?DIR}
marker=$(head -n 1 "$out/comment.md")
number=$(gh api "repos/$repository/commits/$commit/pulls" \
  --jq ".[] | select(.merge_commit_sha == \"$commit\") | .number" | head -n 1)
echo "$number" >"$out/number.txt"
: >"$out/approved.txt"
[ -n "$number" ] || exit 0
author=$(gh api graphql --field "query={viewer{login}}" --jq .data.viewer.login)
# A comment without a digest showed a plan without changes: an older comment does not count then.
gh api --paginate "repos/$repository/issues/$number/comments" \
  --jq ".[] | select(.user.login == \"${author:?}\" and (.body | startswith(\"$marker\")))
    | (.body | capture(\"\\nDigest: \`(?<digest>sha256:[0-9a-f]{64})\`\").digest) // \"none\"" |
  tail -n 1 | sed '/^none$/d' >"$out/approved.txt"
