#!/usr/bin/env bash
# Runs a command with its output in a log. Shows the log only if the command fails; always shows warnings.
#   scripts/quietly.sh [--progress] LOG COMMAND...
# With --progress on a terminal, the command writes to the terminal and shows its own progress; but `cmake --build FOLDER -j N
# [--target TARGETS]` shows nothing where ninja is done within a second: mostly, where it has nothing to do.
set -uo pipefail
progress=no
if [ "$1" = --progress ]; then progress=yes; shift; fi
log=$1
shift
if [ $progress = yes ] && [ -t 1 ]; then
  if [ "${1:-} ${2:-}" = 'cmake --build' ] && [ -f "$3/build.ninja" ] &&
    timeout -s INT 1 ninja -C "$3" --quiet "${@:4:2}" "${@:7}" >"$log" 2>&1; then
    grep -A 8 'warning:' "$log"
    exit 0
  fi
  exec "$@"
fi
if "$@" >"$log" 2>&1; then
  grep -A 8 'warning:' "$log" || true
else
  code=$?
  tail -n 200 "$log" >&2
  exit $code
fi
