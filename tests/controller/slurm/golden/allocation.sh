#!/bin/bash
# paceline -m hydra/launcher=slurm strategy=ddp,fsdp
# written by paceline; it can be read, edited and submitted by hand: sbatch FILE
#SBATCH --job-name=gpt-ddp-fp32-off-1a2b3c4d-r0
#SBATCH --partition=gpu
#SBATCH --account=lab
#SBATCH --qos=high
#SBATCH --constraint="a100&nvlink"
#SBATCH --nodes=1-4
#SBATCH --cpus-per-task=40
#SBATCH --gpus-per-node=8
#SBATCH --mem=64G
#SBATCH --time=1-12:00:00
#SBATCH --exclusive
#SBATCH --no-kill
#SBATCH --output=/data/outputs/sweeps/s/gpt-ddp-fp32-off-1a2b3c4d-r0/slurm/%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=USR2@300
#SBATCH --reservation=mine
#SBATCH --contiguous
#SBATCH --mail-type=END

set -e -o pipefail
trap '' USR2  # a word before the end of the time: for the ranks, which save and leave
export PACELINE_SUBMITTED=1
directory=/data/outputs/sweeps/s/gpt-ddp-fp32-off-1a2b3c4d-r0

echo setup > "$directory/slurm/phase"
module load cuda/12.4
source env.sh
echo run > "$directory/slurm/phase"

code=0
apptainer exec --nv image.sif /data/.venv/bin/python -m paceline run "$directory" || code=$?

# 75: preempted, all saved. Back to the queue; the same directory is gone on with
if [ "$code" -eq 75 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt 10 ]; then
  scontrol requeue "$SLURM_JOB_ID"
fi
exit "$code"
