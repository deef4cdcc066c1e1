#!/bin/bash
# paceline tag='a b'
# written by paceline; it can be read, edited and submitted by hand: sbatch FILE
#SBATCH --job-name=gpt-ddp-fp32-off-1a2b3c4d-r0
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
#SBATCH --output="/data/my outputs/50%%/slurm/%j.log"
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=USR2@120

set -e -o pipefail
trap '' USR2  # a word before the end of the time: for the ranks, which save and leave
export PACELINE_SUBMITTED=1
directory='/data/my outputs/50%'

echo setup > "$directory/slurm/phase"
echo run > "$directory/slurm/phase"

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$(/data/.venv/bin/python -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])')
rm -f "$directory/slurm/exit_code"
code=0
srun --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \
  --cpus-per-task=2 --kill-on-bad-exit=0 \
  bash -c 'trap "" USR2; exec "$@"' paceline \
  /data/.venv/bin/python -m paceline run "$directory" --meet "$head:$port" || code=$?
if [ -s "$directory/slurm/exit_code" ]; then
  code=$(cat "$directory/slurm/exit_code")  # of node 0; srun may have lost another
fi

# 75: preempted, all saved. Back to the queue; the same directory is gone on with
if [ "$code" -eq 75 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt 3 ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
