#!/bin/bash
# One job on two nodes of a SLURM cluster, without any plugin. What follows the file's name are overrides:
#   sbatch launchers/sbatch.sh strategy=fsdp checkpoint=async run.steps=2000
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
ranks=2 # of a node: its GPUs, or a few on CPUs; paceline starts them itself, so one task a node
# module load python
# source .venv/bin/activate

# One paceline a node; they meet at the first node's name, where this script runs: the port is free.
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$(python -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])')

# 120 s before the end of its time the job gets USR2, saves at the end of a step and leaves with 75.
# Until its ranks listen, the signal must not end them: what is ignored here stays so until then.
code=0
srun --kill-on-bad-exit=0 bash -c 'trap "" USR2; exec "$@"' paceline \
  python -m paceline "launch.nnodes=$SLURM_JOB_NUM_NODES" "launch.nproc=$ranks" \
  "launch.rdzv_endpoint=$head:$port" "$@" || code=$?

# Back to the queue, with what is saved; the same words go on in the same directory.
if ((code == 75)); then scontrol requeue "$SLURM_JOB_ID"; fi
exit "$code"
