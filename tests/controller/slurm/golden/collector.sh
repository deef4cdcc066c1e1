#!/bin/bash
# paceline -m hydra/launcher=slurm strategy=ddp,fsdp
# the table, once all cells have ended
#SBATCH --job-name=gpt-ddp-fp32-off-1a2b3c4d-r0-table
#SBATCH --partition=gpu
#SBATCH --account=lab
#SBATCH --qos=high
#SBATCH --constraint="a100&nvlink"
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --time=10
#SBATCH --output=/data/outputs/sweeps/s/gpt-ddp-fp32-off-1a2b3c4d-r0/slurm/collect.log
#SBATCH --open-mode=append

set -e -o pipefail
module load cuda/12.4
source env.sh
apptainer exec --nv image.sif /data/.venv/bin/python -m paceline status /data/outputs/sweeps/s/gpt-ddp-fp32-off-1a2b3c4d-r0 --wait
