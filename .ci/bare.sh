#!/usr/bin/env bash
# Run commands as on a new machine: in a clean clone of HEAD, with an empty home and a path that has nothing but Python, make, git
# and the basic Unix tools. No extra, browser, broker, compiler, npm or cache is seen.
#
#   .ci/bare.sh 'make run' 'make test'
set -euo pipefail
cd "$(dirname "$0")/.."
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
if git rev-parse HEAD >/dev/null 2>&1; then git clone -q . "$place/clone"; else cp -r . "$place/clone"; fi # or an archive
mkdir "$place/bin" "$place/home" "$place/tmp"
for tool in sh bash env make git cat cp mv rm ls ln mkdir mktemp rmdir touch chmod chown head tail sort uniq wc cut tr grep sed awk find xargs \
  expr test true false sleep date uname id whoami getconf nproc dirname basename readlink realpath stat tar gzip gunzip kill ps tee printf \
  echo seq df du diff; do
  if found=$(type -P "$tool"); then ln -s "$found" "$place/bin/$tool"; fi
done
ln -s "$(python3 -c 'import os, sys; print(os.path.realpath(sys.executable))')" "$place/bin/python3"
keep=() # how pip reaches its index
while IFS= read -r name; do keep+=("$name=${!name}"); done \
  < <(compgen -e | grep -E '^(PIP_|SSL_|REQUESTS_CA|CURL_CA)|_(proxy|PROXY)$')
for words in "$@"; do
  began=$SECONDS
  status=0
  (cd "$place/clone" && exec env -i "${keep[@]}" HOME="$place/home" TMPDIR="$place/tmp" PATH="$place/bin" LANG=C.UTF-8 TERM=dumb \
    sh -c "$words" </dev/null 2>&1) || status=$?
  echo "bare: '$words' ended with status $status after $((SECONDS - began)) s."
  if [ "$status" != 0 ]; then exit "$status"; fi
done
