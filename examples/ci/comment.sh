#!/usr/bin/env bash
# Write a comment on a pull request, or edit this user's earlier comment with the same hidden first line.
#
#   comment.sh FILE REPOSITORY NUMBER [new]      needs gh (GitHub's command line) and GH_TOKEN; `new` never edits
set -euo pipefail

file=${1:?FILE} repository=${2:?OWNER/NAME} number=${3:?NUMBER}
marker=$(head -n 1 "$file")
id=
if [ "${4:-}" != new ]; then
  author=$(gh api graphql --field "query={viewer{login}}" --jq .data.viewer.login)
  id=$(gh api --paginate "repos/$repository/issues/$number/comments" \
    --jq ".[] | select(.user.login == \"${author:?}\" and (.body | startswith(\"$marker\"))) | .id" | tail -n 1)
fi
if [ -n "$id" ]; then
  gh api --method PATCH "repos/$repository/issues/comments/$id" --field "body=@$file" --silent
else
  gh api --method POST "repos/$repository/issues/$number/comments" --field "body=@$file" --silent
fi
