#!/usr/bin/env bash
# The same job from an outer torchrun, for people who start ranks themselves. Arguments are overrides:
#   launchers/torchrun.sh 2 strategy=ddp run.steps=40
# Paceline adopts the processes: one of them composes the config, all train one job in one directory.
set -euo pipefail
nproc=$1
shift
exec python -m torch.distributed.run --standalone --nproc-per-node="$nproc" -m paceline "$@"
