#!/bin/bash
# The same job with torchrun on each node, for people who start ranks that way. Words after the name are overrides:
#   sbatch launchers/sbatch_torchrun.sh strategy=ddp checkpoint=sync run.steps=2000
# To edit: the lines that ask the cluster for something, `ranks`, and the lines that set up Python.
#SBATCH --job-name=paceline
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=2
##SBATCH --gpus-per-node=2
##SBATCH --partition=gpu
#SBATCH --time=01:00:00
#SBATCH --signal=USR2@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=paceline-%j.log
set -euo pipefail
ranks=2 # of a node; torchrun starts them, paceline adopts them
# module load python
# source .venv/bin/activate

head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$(python -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])') # here is the first node
start=$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0} # a start's own: a late node of the last one must not join
where=outputs/jobs/slurm-$SLURM_JOB_ID

# torchrun knows no USR2 and would die of it at once: it ignores the signal, the ranks take it.
code=0
srun --kill-on-bad-exit=0 bash -c 'trap "" USR2; exec "$@"' paceline \
  python -m torch.distributed.run --nnodes="$SLURM_JOB_NUM_NODES" --nproc-per-node="$ranks" \
  --rdzv-backend=c10d --rdzv-endpoint="$head:$port" --rdzv-id="$start" \
  -m paceline "launch.nnodes=$SLURM_JOB_NUM_NODES" "launch.nproc=$ranks" \
  "hydra.run.dir=$where" "$@" || code=$?

# torchrun says 1 for any end but a good one: how the job ended stands in its status.json.
if ((code)) && grep -q '"state": "preempted"' "$where/status.json"; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
