#!/usr/bin/env bash
# Completes a prompt in a Slurm job whose tasks divide the layers of a model.
#   scripts/slurm_run.sh -m MODEL -p PROMPT [more options of tandem run]
# The model must lie at the same path on every node. Prints the id of the job.
#
# Environment:
#   RANKS=4                  number of tasks, each of which has some of the layers
#   OUTPUT=text.txt          the text; messages of all ranks are in slurm-JOB.out
#   SBATCH_OPTIONS="..."     of the job, such as "--nodes=4 --gres=gpu:1 --cpus-per-task=16"
#   MPI=pmix                 or pmi2, as Slurm and the MPI of tandem understand each other (srun --mpi=list). Tried with Debian
#                            12's Slurm 22.05: with Open MPI 4.1 pmix works, pmi2 ends at once and says that Open MPI lacks it;
#                            with MPICH 4.0 pmi2 works (MPI=pmi2 scripts/check_slurm.sh BUILD), with pmix each task is a rank
#                            alone
#   TANDEM=tandem            the program
#
# What each rank will have, and how fast all are, before anything is submitted: tandem plan --hosts hosts.toml -m MODEL
set -euo pipefail

usage() { sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0"; }
case "${1-}" in
  -h | --help) usage; exit 0 ;;
  '') usage >&2; exit 2 ;;
esac
tandem=$(command -v "${TANDEM:-tandem}") || { echo "$0: ${TANDEM:-tandem}: no such program; set TANDEM" >&2; exit 2; }
quoted() { printf '%q ' "$@"; }

read -r -a options <<<"${SBATCH_OPTIONS-}"
output=${OUTPUT:-text.txt}
job=$(sbatch --parsable --job-name=tandem-run --ntasks="${RANKS:-4}" ${options[@]+"${options[@]}"} <<JOB
#!/bin/bash
exec srun --mpi=${MPI:-pmix} --output=$(printf '%q' "$output") --error=slurm-%j.out $(quoted "$tandem" run --mpi "$@")
JOB
)
echo "job ${job%%;*}, text in $output, messages in slurm-${job%%;*}.out"
