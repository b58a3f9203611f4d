#!/usr/bin/env bash
# Runs every fuzz target of a build for SECONDS each; stops at the first failure.
#   scripts/run_fuzzers.sh BUILD_FOLDER SECONDS
# Keeps corpora in BUILD_FOLDER/corpus/NAME, so that the next run continues from there; the program NAME_seeds, if it
# exists, writes the first files. Failing inputs are saved in BUILD_FOLDER/found/.
set -euo pipefail
build=$1 seconds=$2
cd "$(dirname "$0")/.."
mkdir -p "$build/found"
ran=0
for target in "$build"/bin/*_fuzz; do
  if ! [ -x "$target" ]; then continue; fi
  name=$(basename "$target")
  name=${name%_fuzz}
  mkdir -p "$build/corpus/$name"
  if [ -x "$build/bin/${name}_seeds" ]; then "$build/bin/${name}_seeds" "$build/corpus/$name"; fi
  echo "${name}_fuzz: $seconds s"
  if ! "$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -print_final_stats=1 \
      -artifact_prefix="$build/found/$name-" "$build/corpus/$name" >"$build/${name}_fuzz.log" 2>&1 </dev/null; then
    tail -n 60 "$build/${name}_fuzz.log" >&2
    echo "${name}_fuzz failed; the input is in $build/found/" >&2
    exit 1
  fi
  grep -E 'number_of_executed_units|peak_rss' "$build/${name}_fuzz.log" | sed 's/^stat::/  /'
  ran=$((ran + 1))
done
if [ $ran -eq 0 ]; then echo "no fuzz target in $build/bin" >&2; exit 1; fi
echo "$ran fuzz targets ran without a failure"
