#!/usr/bin/env bash
# Answers a file of prompts with a Slurm job array: one task per shard, then a job that joins the answers.
#   scripts/slurm_batch.sh -m MODEL -i PROMPTS -o ANSWERS [more options of tandem batch]
# Paths must be the same on every node, in a folder that they share. Prints the ids of both jobs.
#
# Environment:
#   SHARDS=8                 number of tasks, each of which answers every 8th line
#   ONLY=3,7                 only these shards: those that the merge has named as incomplete (keep SHARDS as it was)
#   SBATCH_OPTIONS="..."     of each task, such as "--gres=gpu:1 --cpus-per-task=16 --time=4:00:00"
#   TANDEM=tandem            the program
#
# Without an array, one job with MPI does the same; its tasks take lines as they get free:
#   sbatch -n 8 --wrap="srun --mpi=pmix tandem batch --mpi -m MODEL -i PROMPTS -o ANSWERS"
#
# A task that was killed or ran out of time goes on where it stopped when it is submitted again. The merge runs when all
# tasks have ended, well or not; it names incomplete shards in its output and then fails.
set -euo pipefail

usage() { sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"; }
case "${1-}" in
  -h | --help) usage; exit 0 ;;
  '') usage >&2; exit 2 ;;
esac

input='' output=''
arguments=("$@")
for ((i = 0; i < $#; ++i)); do
  case "${arguments[i]}" in
    -i | --input) input=${arguments[i + 1]-} ;;
    --input=*) input=${arguments[i]#*=} ;;
    -o | --output) output=${arguments[i + 1]-} ;;
    --output=*) output=${arguments[i]#*=} ;;
  esac
done
if [ -z "$input" ] || [ -z "$output" ] || [ "$input" = - ] || [ "$output" = - ]; then
  echo "$0: needs -i FILE and -o FILE, which every task reads and writes itself" >&2
  exit 2
fi

shards=${SHARDS:-8}
tandem=$(command -v "${TANDEM:-tandem}") || { echo "$0: ${TANDEM:-tandem}: no such program; set TANDEM" >&2; exit 2; }
quoted() { printf '%q ' "$@"; }

read -r -a options <<<"${SBATCH_OPTIONS-}"
array=$(sbatch --parsable --job-name=tandem-batch --array="${ONLY:-1-$shards}" --requeue --open-mode=append \
  ${options[@]+"${options[@]}"} <<JOB
#!/bin/bash
exec $(quoted "$tandem" batch "$@")--shard "\$SLURM_ARRAY_TASK_ID/$shards"
JOB
)
merge=$(sbatch --parsable --job-name=tandem-merge --dependency="afterany:${array%%;*}" <<JOB
#!/bin/bash
exec $(quoted "$tandem" batch --merge -i "$input" -o "$output")
JOB
)
echo "tasks: job $array, shards ${ONLY:-1-$shards} of $shards"
echo "merge: job $merge, output slurm-${merge%%;*}.out"
