#!/usr/bin/env bash
# Tests and measures tandem on a machine with an NVIDIA GPU, in three pieces of ten minutes, the most valuable first.
# Needs the driver and python3, nothing else; runs from an unpacked `make gpu-pack` archive in any folder.
#
#   ./gpu_day.sh 1    the device and its limits, the GPU tests, the golden text, decode, prefill, streaming, a profile
#   ./gpu_day.sh 2    the GPU tests under compute-sanitizer, other placements
#   ./gpu_day.sh 3    predictions beside measurements, other types, long contexts
#
# Environment:
#   OUT=./results   where pieceN.log, pieceN.jsonl (every measurement) and pieceN.md (the summary) are written
#   SCRATCH         where models are written and kept, about 6 GB for pieces 1 and 2, 35 GB for piece 3
#                   (default: a folder in TMPDIR)
#   MINUTES=10      the time of a piece: a step that would start later is reported as not run
#   SHAPE, TYPE     the model, random weights of this shape (llama-3.1-8b, Q4_K_M; tinyllama-1.1b:2 is its first 2 layers)
#   TYPES           other types of the model, for piece 3 (Q8_0,Q4_0,F16)
#   TRY=1           tries the pack where there is no GPU: the same steps on the CPU, with few tokens
#
# Every step has a limit of its own, and every result is written when it is known. A step that fails or runs past its limit
# is reported and the next goes on. Exit codes: 0 every step passed, 1 a step failed or ran past its limit, 2 usage,
# 3 no step failed, but some did not run (no GPU, no tool, no time).
set -uo pipefail

usage() { sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}"; }
case "${1-}" in
  1 | 2 | 3) [ $# -eq 1 ] || { usage >&2; exit 2; } ;;
  -h | --help) usage; exit 0 ;;
  *) usage >&2; exit 2 ;;
esac
piece=$1
pack=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
bin=$pack/bin
OUT=${OUT:-./results}
SCRATCH=${SCRATCH:-${TMPDIR:-/tmp}/tandem-gpu-day}
SHAPE=${SHAPE:-llama-3.1-8b} TYPE=${TYPE:-Q4_K_M} TYPES=${TYPES:-Q8_0,Q4_0,F16}
mkdir -p "$OUT" "$SCRATCH" || exit 1
OUT=$(cd "$OUT" && pwd) SCRATCH=$(cd "$SCRATCH" && pwd)
log=$OUT/piece$piece.log rows=$OUT/piece$piece.jsonl summary=$OUT/piece$piece.md
end=$(awk "BEGIN { print int(${MINUTES:-10} * 60 - 15) }")  # seconds from now
export TANDEM_SHARED=$pack PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
export XDG_CACHE_HOME=${XDG_CACHE_HOME:-$SCRATCH/cache}  # where measured speeds are kept
# cuBLAS is part of the toolkit, whose folder a bare machine does not search.
toolkit=/usr/local/cuda
export PATH=$PATH:$toolkit/bin LD_LIBRARY_PATH=$pack/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
on_gpu=(-ngl 99) cpu=()
if [ -n "${TRY-}" ]; then
  on_gpu=(--device none) cpu=(--cpu --repetitions 1)
  export TANDEM_GPU_TESTS_ON=simulated TANDEM_GPU_TESTS=some
fi
nothing_to_do=77  # exit code of a step that cannot run here; its last line says why
failed=0 not_run=0

# ---- Steps ----

# result NAME RESULT SECONDS DETAIL
result() {
  printf '| %-32s | %-10s | %4s | %s |\n' "$1" "$2" "$3" "${4//|//}" | tee -a "$summary"
  case $2 in
    passed) ;;
    'not run') not_run=$((not_run + 1)) ;;
    *) failed=$((failed + 1)) ;;
  esac
}

# step NAME LIMIT gpu|any COMMAND...: runs the command and writes its result.
step() {
  local name=$1 limit=$2 needs=$3 left=$((end - SECONDS)) start=$SECONDS code before detail
  shift 3
  if [ "$needs" = gpu ] && [ -n "$no_gpu" ]; then result "$name" 'not run' 0 "no GPU: $no_gpu"; return; fi
  if [ $left -lt 10 ]; then result "$name" 'not run' 0 'no time left'; return; fi
  if [ "$limit" -gt $left ]; then limit=$left; fi
  printf '\n==== %s (at most %s s)\n' "$name" "$limit" | tee -a "$log"
  before=$(wc -c <"$log")
  timeout -k 5 "$limit" "$@" >>"$log" 2>&1 </dev/null &
  local pid=$!
  tail -c +$((before + 1)) -s 0.2 --pid=$pid -f "$log"
  wait $pid
  code=$?
  detail=$(tail -c +$((before + 1)) "$log" | tr -d '\r' | grep -v '^ *$' | tail -n 1 | cut -c 1-160)
  case $code in
    0) result "$name" passed $((SECONDS - start)) "$detail" ;;
    $nothing_to_do) result "$name" 'not run' $((SECONDS - start)) "$detail" ;;
    124 | 137) result "$name" 'timed out' $((SECONDS - start)) "after $limit s; $detail" ;;
    *) result "$name" failed $((SECONDS - start)) "exit code $code; $detail" ;;
  esac
}

# Functions as steps: `timeout` starts a process, so they run in a shell of their own.
function_step() {
  local name=$1 limit=$2 needs=$3 function=$4
  shift 4
  step "$name" "$limit" "$needs" bash -c "$(declare -f "$function"); $function \"\$@\"" "$function" "$@"
}

# ---- What the steps do ----

device_facts() {  # BIN
  nvidia-smi 2>&1 || echo "nvidia-smi does not run here"
  nvidia-smi --query-gpu=name,compute_cap,driver_version,memory.total,clocks.max.sm,clocks.max.mem,pcie.link.gen.max,pcie.link.width.max,power.limit --format=csv 2>&1
  nvcc --version 2>&1 | tail -n 2
  lscpu 2>/dev/null | grep -E '^(Model name|CPU\(s\)|Thread|NUMA node\(s\)|Flags)' | cut -c 1-400
  grep -E '^(MemTotal|MemAvailable)' /proc/meminfo
  df -h "$2" 2>/dev/null | tail -n 1
  "$1/tandem" --version || exit
  "$1/tandem" plan --list-devices
}

golden_text() {  # BIN DATA [OPTIONS...]
  local bin=$1 data=$2 text expected
  shift 2
  text=$("$bin/tandem" run -m "$data/stories260K.gguf" -p "Once upon a time" -n 60 --temp 0 "$@") || exit
  expected=$(cat "$data/stories260K.txt")
  [ ${#text} -ge 150 ] || { echo "only ${#text} characters: $text"; exit 1; }
  case $expected in
    "$text"*) echo "the first ${#text} characters are the golden ones" ;;
    *) echo "expected: ${expected:0:${#text}}"; echo "found a different text: $text"; exit 1 ;;
  esac
}

profile() {  # BIN MODEL OPTIONS...: time, bandwidth and registers of each kernel in a few decoding steps
  local bin=$1 model=$2 ncu
  shift 2
  ncu=$(command -v ncu || ls -d /opt/nvidia/nsight-compute/*/ncu 2>/dev/null | tail -n 1)
  [ -n "$ncu" ] || { echo "no profiler: ncu not found"; exit 77; }
  "$ncu" --clock-control none --launch-skip 300 --launch-count 500 --kill yes --print-summary per-kernel \
    --metrics gpu__time_duration.sum,dram__bytes.sum,dram__throughput.avg.pct_of_peak_sustained_elapsed,launch__registers_per_thread,launch__grid_size,launch__waves_per_multiprocessor \
    "$bin/tandem" bench -m "$model" -p 0 -n 8 -r 1 "$@"
}

bench() {  # SECTION LIMIT [TYPES]
  step "bench: $1" "$2" gpu python3 "$pack/scripts/bench_gpu.py" "$pack" --sections "$1" --scratch "$SCRATCH" \
    --shape "$SHAPE" --types "${3:-$TYPE}" --limit "$2" --json "$rows" "${cpu[@]}"
}

test_suites() {  # SECTION LIMIT SUITE...: under a tool
  local section=$1 limit=$2 suite
  shift 2
  if [ -z "$no_gpu" ] && ! command -v compute-sanitizer >/dev/null; then
    result "$section" 'not run' 0 'no compute-sanitizer'
    return
  fi
  for suite in "$@"; do
    step "$section: $suite" $((limit + 10)) gpu python3 "$pack/scripts/test_gpu.py" "$pack" --sections "$section" \
      --filter "$suite*" --limit "$limit" --json "$rows"
  done
}

# ---- The pieces ----

model=$SCRATCH/${SHAPE/:/-}-$TYPE.gguf
write_model=("$bin/tandem" synth "${SHAPE%%:*}" --type "$TYPE" -o "$model")
case $SHAPE in *:*) write_model+=(--layers "${SHAPE#*:}") ;; esac
writer=
start_writing() {  # the model, while other steps run
  if [ -n "$no_gpu" ] || [ -f "$model" ]; then return; fi
  "${write_model[@]}" >"$SCRATCH/synth.log" 2>&1 </dev/null &
  writer=$!
  trap 'kill $writer 2>/dev/null' EXIT
}
finish_writing() {
  function_step "write $SHAPE $TYPE" 200 gpu wait_for_model "$writer" "$model" "${write_model[@]}"
}
wait_for_model() {  # PID FILE COMMAND...: waits for the program that writes the file, if there is one, or runs the command
  local pid=$1 file=$2
  shift 2
  while [ ! -f "$file" ] && [ -n "$pid" ] && kill -0 "$pid" 2>/dev/null; do sleep 0.5; done
  [ -f "$file" ] || "$@" || exit
  ls -l "$file" | awk '{ printf "%.2f GB\n", $5 / 1e9 }'
}

piece_1() {
  function_step 'device facts' 20 any device_facts "$bin" "$SCRATCH"
  function_step 'golden text on the CPU' 20 any golden_text "$bin" "$pack/data" --device none
  start_writing
  step 'limits of the device' 60 gpu "$bin/gpu_limits"
  function_step 'golden text on the GPU' 30 gpu golden_text "$bin" "$pack/data" "${on_gpu[@]}"
  step 'GPU tests' 210 gpu python3 "$pack/scripts/test_gpu.py" "$pack" --sections tests --jobs 0 --limit 200 --json "$rows"
  finish_writing
  bench decode 90
  bench chains 150
  bench products 60
  bench prefill 90
  bench streamed 90
  function_step 'profile of the kernels' 90 gpu profile "$bin" "$model" "${on_gpu[@]}"
}

piece_2() {
  start_writing
  test_suites memcheck 60 GpuDevice GpuRows GpuAttention GpuPackedAttention GpuLinear Products/GpuLongPrompts Products/GpuChain GpuFetch
  test_suites memcheck 90 GpuSplit.StoriesAreTheGoldenOnes
  test_suites racecheck 50 GpuRows GpuAttention GpuPackedAttention GpuLinear Products/GpuLongPrompts Products/GpuChain
  finish_writing
  bench attention 90
  bench modes 100
  test_suites initcheck 40 GpuRows GpuAttention GpuLinear
  test_suites synccheck 40 GpuRows GpuAttention GpuLinear
  bench layers 90
}

piece_3() {
  finish_writing
  step 'offload: predicted and measured' 240 gpu python3 "$pack/scripts/offload_report.py" "$pack" --models "$model" \
    --vram 4,8,16,24 --limit 60 --json "$rows"
  bench long 90
  bench types 240 "$TYPE,$TYPES"
}

# Why there is no GPU to use; nothing if there is one.
find_gpu() {
  local listed
  if [ -n "${TRY-}" ]; then return; fi
  listed=$(timeout -k 5 30 "$bin/tandem" plan --list-devices 2>&1) || return 0  # a fault; the steps report it
  if grep -q '^CUDA0' <<<"$listed"; then return; fi
  "$bin/gpu_limits" 2>&1 | sed -n 's/.*"why": "\(.*\)".*/\1/p' | grep . || echo 'the program lists none'
}

: >"$log"
: >"$rows"
{
  echo "# tandem, piece $piece of 3, $(date -u +%Y-%m-%dT%H:%MZ)"
  echo
  cat "$pack/PACK.txt"
  echo
} >"$summary"
no_gpu=$(find_gpu)
if [ -n "$no_gpu" ]; then echo "no GPU: $no_gpu" | tee -a "$log" "$summary"; fi
{
  printf '| %-32s | %-10s | %4s | %s |\n' step result s 'last line'
  echo '|----------------------------------|------------|-----:|---|'
} >>"$summary"
piece_"$piece"

if grep -q '"kind": "bench"' "$rows"; then
  { echo; python3 "$pack/scripts/bench_gpu.py" --table "$rows"; } >>"$summary"
fi
printf '\nSummary (%s):\n\n' "$summary"
cat "$summary"
if [ $failed -gt 0 ]; then exit 1; fi
if [ $not_run -gt 0 ]; then exit 3; fi
