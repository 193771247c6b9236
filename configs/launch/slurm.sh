#!/bin/bash
#SBATCH --job-name=psd
#SBATCH --nodes=3
#SBATCH --ntasks-per-node=2
#SBATCH --no-kill
# A job of several daemons that serve a model together and of trainers, on any number of nodes:
#
#     sbatch configs/launch/slurm.sh --model mlp --data synthetic:2000 --epochs 2
#
# The arguments after the script's name go to psd-trainer train. PSD_DAEMONS (2): number of nodes, from the first on, that run a daemon.
# PSD_TRAINERS (one for each node). PSD_PORT (5500): the daemon of partition N listens at PSD_PORT + N. PSD_CONFIG: your own
# configuration, without `daemons`, `listen` and `auth`. The job's files are in psd-JOB in the folder from which it is submitted, which
# must be visible to all nodes. Tokens cross the cluster's network unencrypted: if others could listen, use `tls` and tls:// addresses.
#
# --no-kill keeps the job when a node fails. A daemon that is lost with its node ends the run, unless it has a standby
# (docs/guides/standby.md): with PSD_ENGINE, the members of an etcd outside of the job as http://HOST:PORT[,…], each daemon has one, on the
# node after its own, which listens at PSD_PORT + PSD_DAEMONS + N. The job's keys in that etcd begin with /psd/job-JOB.
set -euo pipefail

daemons=${PSD_DAEMONS:-2}
trainers=${PSD_TRAINERS:-$SLURM_JOB_NUM_NODES}
port=${PSD_PORT:-5500}
engine=${PSD_ENGINE:-}
folder=$SLURM_SUBMIT_DIR/psd-$SLURM_JOB_ID
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
if [ "$daemons" -gt "${#nodes[@]}" ]; then
  echo "slurm.sh: PSD_DAEMONS is $daemons, and the job has ${#nodes[@]} nodes" >&2
  exit 2
fi
if [ -n "$engine" ] && [ "${#nodes[@]}" -lt 2 ]; then
  echo "slurm.sh: PSD_ENGINE is given, and a standby would be on the node of its primary: the job has no other one" >&2
  exit 2
fi

umask 077
mkdir -p "$folder"
for role in trainer admin; do
  psd token new --name "$role" --role "$role" --file "$folder/tokens" >"$folder/$role.token"
done

# of_node I PORT: the address of a daemon on the job's node I.
of_node() {
  local host
  host=$(scontrol show node --oneliner "${nodes[$1 % ${#nodes[@]}]}" | sed -n 's/.*NodeAddr=\([^ ]*\).*/\1/p')
  echo "tcp://$host:$2"
}

# in_list WORD…: the words as a JSON list.
in_list() { printf '"%s",' "$@" | sed 's/^/[/; s/,$/]/'; }

addresses=() standbys=() entries=()
for ((i = 0; i < daemons; i++)); do
  addresses+=("$(of_node "$i" $((port + i)))")
  [ -z "$engine" ] || standbys+=("$(of_node $((i + 1)) $((port + daemons + i)))")
  entries+=("${addresses[i]}${engine:+,${standbys[i]}}")
done

# start NAME NODE PARTITION ADDRESS: starts a daemon of that partition on that node of the job.
starts=() names=()
start() {
  local more=() endpoints
  if [ -n "$engine" ]; then
    IFS=, read -ra endpoints <<<"$engine"
    more=(--set "engine={\"endpoints\":$(in_list "${endpoints[@]}"),\"prefix\":\"/psd/job-$SLURM_JOB_ID/$3\"}"
      --set "replication.addresses=$(in_list "$4")" --set "replication.token_file=$folder/admin.token")
  fi
  srun --overlap --nodes=1 --ntasks=1 --nodelist="${nodes[$2 % ${#nodes[@]}]}" --job-name="$1" --output="$folder/$1.log" \
    psd ${PSD_CONFIG:+--config "$PSD_CONFIG"} --index "$3" --listen "tcp://*:${4##*:}" --set "daemons=$(in_list "${entries[@]}")" \
    --set "auth={\"tokens\":\"$folder/tokens\"}" --set exit_when_done=true "${more[@]}" &
  starts+=($!) names+=("$1")
}

for ((i = 0; i < daemons; i++)); do
  start "psd-$i" "$i" "$i" "${addresses[i]}"
  [ -z "$engine" ] || start "psd-$i-standby" $((i + 1)) "$i" "${standbys[i]}"
done

# srun gives each trainer its SLURM_PROCID and SLURM_NTASKS, which are its rank and the world size.
all=$(IFS=,; echo "${entries[*]}")
status=0
PSD_TOKEN_FILE=$folder/trainer.token srun --overlap --ntasks="$trainers" --job-name=psd-trainer --output="$folder/trainer-%t.log" \
  psd-trainer train --server "$all" "$@" || status=$?
# With exit_when_done the daemons end with their trainers, but not if these failed before they had joined.
[ "$status" -eq 0 ] || PSD_TOKEN_FILE=$folder/admin.token psd stop --discard --server "$all" || true
# With standbys, each follows its primary in the list. One daemon of a replica set may be lost, but not both, and the other must save.
each=$((${engine:+1} + 1))
for ((i = 0; i < ${#starts[@]}; i += each)); do
  lost=0
  for ((j = i; j < i + each; j++)); do
    ended=0
    wait "${starts[j]}" || ended=$?
    [ "$ended" -eq 0 ] && continue
    lost=$((lost + 1)) last=$ended
    if grep -q "could not save " "$folder/${names[j]}.log"; then status=$ended; fi
  done
  if [ "$lost" -eq "$each" ]; then status=$last; fi
done
exit "$status"
