#!/usr/bin/env bash
# Compares the public contract with the last published main, and refuses what breaks clients that exist.
# tests/chairlift/v1/contract.txt guards the same across any number of commits; buf knows more rules.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

before=$(git rev-parse --verify --quiet origin/main || true)
if [ -z "$before" ] || git merge-base --is-ancestor HEAD "$before"; then
    before=$(git rev-parse --verify --quiet HEAD~1 || true)
fi
if [ -z "$before" ] || ! git cat-file -e "$before:proto/buf.yaml" 2>/dev/null; then
    echo "buf breaking: there is no earlier contract to compare with"
    exit 0
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
git archive "$before" proto | tar -x -C "$folder"
echo "buf breaking: against $before"
buf breaking proto --against "$folder/proto"
