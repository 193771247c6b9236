#!/bin/bash
#SBATCH --job-name=psd
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=2
#SBATCH --no-kill
# A job of several daemons that serve a model together and of trainers, on any number of nodes:
#
#     sbatch configs/launch/slurm.sh --model mlp --data synthetic:2000 --epochs 2
#
# What follows the script's name goes to psd-trainer train. PSD_DAEMONS (2): how many nodes, from the first on, run a daemon.
# PSD_TRAINERS (one for each node). PSD_PORT (5500): the daemon of partition N listens at PSD_PORT + N. PSD_CONFIG: a configuration
# of your own, without `daemons`, `listen` and `auth`. The job's files are in psd-JOB in the folder that it is submitted from, which
# all nodes see. Tokens go over the cluster's network in the clear: where others could listen, give `tls` and addresses tls://.
#
# --no-kill keeps the job when a node fails. A daemon that is lost with its node ends the run, unless it has a standby
# (docs/standby.md), which needs an etcd outside of the job.
set -euo pipefail

daemons=${PSD_DAEMONS:-2}
trainers=${PSD_TRAINERS:-$SLURM_JOB_NUM_NODES}
port=${PSD_PORT:-5500}
folder=$SLURM_SUBMIT_DIR/psd-$SLURM_JOB_ID
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
if [ "$daemons" -gt "${#nodes[@]}" ]; then
  echo "slurm.sh: PSD_DAEMONS is $daemons, and the job has ${#nodes[@]} nodes" >&2
  exit 2
fi

umask 077
mkdir -p "$folder"
for role in trainer admin; do
  psd token new --name "$role" --role "$role" --file "$folder/tokens" >"$folder/$role.token"
done

addresses=()
for ((i = 0; i < daemons; i++)); do
  host=$(scontrol show node --oneliner "${nodes[i]}" | sed -n 's/.*NodeAddr=\([^ ]*\).*/\1/p')
  addresses+=("tcp://$host:$((port + i))")
done
list=$(printf '"%s",' "${addresses[@]}")
starts=()
for ((i = 0; i < daemons; i++)); do
  srun --overlap --nodes=1 --ntasks=1 --nodelist="${nodes[i]}" --job-name="psd-$i" --output="$folder/psd-$i.log" \
    psd ${PSD_CONFIG:+--config "$PSD_CONFIG"} --index "$i" --listen "tcp://*:$((port + i))" \
    --set "daemons=[${list%,}]" --set "auth={\"tokens\":\"$folder/tokens\"}" --set exit_when_done=true &
  starts+=($!)
done

# srun gives each trainer its SLURM_PROCID and SLURM_NTASKS, which are its rank and the world size.
status=0
PSD_TOKEN_FILE=$folder/trainer.token srun --overlap --ntasks="$trainers" --job-name=psd-trainer --output="$folder/trainer-%t.log" \
  psd-trainer train --server "$(IFS=,; echo "${addresses[*]}")" "$@" || status=$?
# With exit_when_done the daemons end with their trainers; where these failed before they had joined, nobody else ends them.
[ "$status" -eq 0 ] || PSD_TOKEN_FILE=$folder/admin.token psd stop --server "$(IFS=,; echo "${addresses[*]}")" || true
for start in "${starts[@]}"; do wait "$start" || status=$?; done
exit "$status"
