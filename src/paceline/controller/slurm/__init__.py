"""Jobs on a SLURM cluster: submitted, looked at, settled when they are over."""
