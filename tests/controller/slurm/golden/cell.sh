head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
port=$(apptainer exec --nv image.sif /data/.venv/bin/python -c 'import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])')
exec srun --nodes=2 --ntasks=2 --ntasks-per-node=1 \
  --cpus-per-task=40 --kill-on-bad-exit=0 --no-kill \
  bash -c 'trap "" USR2; exec "$@"' paceline \
  apptainer exec --nv image.sif /data/.venv/bin/python -m paceline run /data/outputs/sweeps/s/gpt-ddp-fp32-off-1a2b3c4d-r0 --meet "$head:$port"
