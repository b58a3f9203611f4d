#!/usr/bin/env bash
# Runs a command in a Slurm cluster of one node, this machine, which is started in a temporary folder and ends with it.
#   scripts/slurm_here.sh [-n CPUS] COMMAND...
# Needs root and Debian's packages slurm-wlm and munge. Changes nothing in /etc and uses ports of its own. The command finds
# sbatch, srun and the rest of this cluster by SLURM_CONF. Exits with the command's code, 3 if the cluster does not start
# (its logs are then printed).
set -uo pipefail

n_cpus=$(nproc)
if [ "${1-}" = -n ]; then n_cpus=$2; shift 2; fi
[ $# -gt 0 ] || { sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$0" >&2; exit 2; }
for program in munged slurmctld slurmd sinfo; do
  command -v $program >/dev/null || { echo "$0: $program is not installed (packages slurm-wlm and munge)" >&2; exit 3; }
done

folder=$(mktemp -d)
chmod 755 "$folder"
host=$(hostname -s)
processes=()
stop() {
  kill "${processes[@]}" 2>/dev/null
  wait 2>/dev/null
  rm -rf "$folder"
}
trap stop EXIT

mkdir "$folder"/{state,spool,munge}
chmod 700 "$folder/munge"
head -c 1024 /dev/urandom >"$folder/munge/key"
chmod 400 "$folder/munge/key"
cat >"$folder/slurm.conf" <<CONF
ClusterName=here
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmctldPort=$((20000 + $$ % 10000))
SlurmdPort=$((30000 + $$ % 10000))
AuthType=auth/munge
AuthInfo=socket=$folder/munge.socket
CredType=cred/munge
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MinJobAge=60
SchedulerParameters=sched_interval=2,batch_sched_delay=0
SlurmdParameters=config_overrides
ReturnToService=2
NodeName=$host NodeAddr=127.0.0.1 CPUs=$n_cpus State=UNKNOWN
PartitionName=all Nodes=$host Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
CONF
export SLURM_CONF=$folder/slurm.conf

munged --foreground --force --key-file="$folder/munge/key" --socket="$folder/munge.socket" --pid-file="$folder/munge.pid" \
  --log-file="$folder/munge/log" --seed-file="$folder/munge/seed" >"$folder/munged.out" 2>&1 &
processes+=($!)
sleep 1
slurmctld -D >"$folder/slurmctld.out" 2>&1 &
processes+=($!)
slurmd -D >"$folder/slurmd.out" 2>&1 &
processes+=($!)
for _ in $(seq 60); do
  [ "$(sinfo -h -o %t 2>/dev/null)" = idle ] && break
  sleep 0.5
done
if [ "$(sinfo -h -o %t 2>/dev/null)" != idle ]; then
  echo "$0: the cluster did not start" >&2
  tail -n 20 "$folder"/*.out >&2
  exit 3
fi
"$@"
