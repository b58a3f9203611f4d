#!/usr/bin/env bash
# Runs scripts/slurm_batch.sh in a Slurm cluster of one node (scripts/slurm_here.sh): an array of which one task is
# cancelled, the merge that names it, that shard again, and the merge that then is equal to one run's answers. Then, if BUILD has
# MPI, srun with three ranks, and a text whose model three ranks divide (scripts/slurm_run.sh).
#   scripts/check_slurm.sh BUILD
# MPI=pmi2 starts ranks by it, as a BUILD with MPICH needs; the default, pmix, is for Open MPI. Needs what slurm_here.sh needs.
# Exits with 0 if all of it holds.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
if [ "${1-}" != --inside ]; then
  [ $# -eq 1 ] || { sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0" >&2; exit 2; }
  exec "$here/slurm_here.sh" -n 4 "$0" --inside "$(cd "$1" && pwd)"
fi

export TANDEM=$2/bin/tandem
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
fail() { echo "$0: $*" >&2; tail -n 5 slurm-*.out >&2 || true; exit 1; }
options=(-m "$here/../models/tandem-demo-Q8_0.gguf" -i prompts.jsonl -o answers.jsonl -t 1 -np 1 --temp 0 -n 20)
for i in $(seq 41); do echo "{\"prompt\": \"Once there were $i birds\", \"id\": $i}"; done >prompts.jsonl
"$TANDEM" batch "${options[@]/answers/whole}" --shard off 2>/dev/null

wait_for() {
  for _ in $(seq 240); do
    [ -z "$(squeue -h -j "$1" 2>/dev/null)" ] && return
    sleep 0.5
  done
  fail "job $1 does not end: $(squeue)"
}
submit() {
  local text
  text=$(SHARDS=4 SBATCH_OPTIONS="--cpus-per-task=1" "$here/slurm_batch.sh" "${options[@]}")
  echo "$text"
  tasks=$(sed -n 's/^tasks: job \([0-9]*\).*/\1/p' <<<"$text")
  merge=$(sed -n 's/^merge: job \([0-9]*\).*/\1/p' <<<"$text")
}

submit
scancel "${tasks}_3"
wait_for "$tasks"
wait_for "$merge"
cat "slurm-$merge.out"
grep -q 'shard 3/4: answers-00003-of-00004.jsonl' "slurm-$merge.out" || fail "the merge does not name the cancelled shard"
[ ! -e answers.jsonl ] || fail "the merge wrote answers although a shard is incomplete"
ONLY=3 submit
wait_for "$tasks"
wait_for "$merge"
cat "slurm-$merge.out"
sort -t: -k2n whole.jsonl >sorted.jsonl
cmp answers.jsonl sorted.jsonl || fail "the answers differ from those of one run"
echo "passed: 4 shards, one cancelled and answered again, equal to one run"

if [ -e "$2/lib/tandem/libtandem_mpi.so" ]; then
  srun --mpi="${MPI:-pmix}" -n 3 "$TANDEM" batch --mpi "${options[@]/answers/ranks}"
  sort -t: -k2n ranks.jsonl | cmp - sorted.jsonl || fail "the answers of three ranks differ from those of one run"
  echo "passed: srun with 3 ranks, equal to one run"
  run=(-m "$here/../models/tandem-demo-Q8_0.gguf" -p "Once there were three birds" -t 1 --temp 0 -n 20)
  "$TANDEM" run "${run[@]}" >one.txt 2>/dev/null
  job=$(RANKS=3 OUTPUT=ranks.txt "$here/slurm_run.sh" "${run[@]}" | sed -n 's/^job \([0-9]*\).*/\1/p')
  wait_for "$job"
  cmp one.txt ranks.txt || fail "the text of three ranks differs from that of one run"
  echo "passed: a model over 3 ranks, the text of one run"
fi
