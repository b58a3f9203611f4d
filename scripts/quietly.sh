#!/usr/bin/env bash
# Runs a command with its output in a log, and shows the log only when the command fails; warnings are always shown.
#   scripts/quietly.sh [--progress] LOG COMMAND...
# With --progress and a terminal the command keeps the terminal, so that its own progress line is seen.
set -uo pipefail
progress=no
if [ "$1" = --progress ]; then progress=yes; shift; fi
log=$1
shift
if [ $progress = yes ] && [ -t 1 ]; then exec "$@"; fi
if "$@" >"$log" 2>&1; then
  grep -A 8 'warning:' "$log" || true
else
  code=$?
  tail -n 200 "$log" >&2
  exit $code
fi
