#!/usr/bin/env bash
# Write a comment on a pull request, or edit the one that is there already: it begins with the same hidden marker.
#
#   comment.sh FILE REPOSITORY NUMBER      needs gh (GitHub's command line) and GH_TOKEN
set -euo pipefail

file=${1:?FILE} repository=${2:?OWNER/NAME} number=${3:?NUMBER}
marker=$(head -n 1 "$file")
id=$(gh api --paginate "repos/$repository/issues/$number/comments" \
  --jq ".[] | select(.body | startswith(\"$marker\")) | .id" | head -n 1)
if [ -n "$id" ]; then
  gh api --method PATCH "repos/$repository/issues/comments/$id" --field "body=@$file" --silent
else
  gh api --method POST "repos/$repository/issues/$number/comments" --field "body=@$file" --silent
fi
