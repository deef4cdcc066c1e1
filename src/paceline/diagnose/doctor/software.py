"""What is installed: packages, torch and its devices, a compiler, SLURM."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.diagnose.doctor.line import MISSING, NOTHING, OK, SLOW, Line


def packages(facts: Mapping[str, Any]) -> list[Line]:
    """Held to the requirements of the installed paceline."""
    version, needs = facts["python"], facts["requires_python"]
    if needs is None:
        why = "n/a: paceline isn't installed, so its requirements aren't known"
        return [Line("python", OK, version, why)]
    wrong = [one for one in facts["packages"] if not one["fits"]]
    found = [Line("python", OK, f"{version}, {needs} is needed")]
    if not facts["python_fits"]:
        way_out = f"make a virtual environment with python {needs}"
        found = [Line("python", MISSING, version, f"{needs} is needed", way_out)]
    total = len(facts["packages"])
    if not wrong:
        return [*found, Line("packages", OK, f"{total} of {total} as required")]
    says = ", ".join(f"{one['name']}{one['needs']} (here: {one['version']})" for one in wrong)
    install = " ".join(f'"{one["name"]}{one["needs"]}"' for one in wrong)
    value = f"{total - len(wrong)} of {total} as required"
    return [*found, Line("packages", MISSING, value, f"needed: {says}", f"pip install {install}")]


def torch(facts: Mapping[str, Any]) -> list[Line]:
    """Its version stands in `packages`. A GPU is missing only to a build that could use one."""
    if facts["error"] is not None:
        way_out = "install it again; python -c 'import torch' shows the whole error"
        return [Line("torch", MISSING, "can't be imported", facts["error"], way_out)]
    build = "CPU build"
    if facts["cuda_build"] is not None:
        build = f"built for CUDA {facts['cuda_build']}"
    elif facts["hip_build"] is not None:
        build = f"built for ROCm {facts['hip_build']}"
    found = [Line("torch", OK, f"{facts['version']}, {build}")]
    if not facts["gloo"]:
        way_out = "install a build of torch with torch.distributed"
        found.append(Line("gloo", MISSING, "not in this build", "ranks can't talk", way_out))
    return [*found, *_gpu(facts)]


def _gpu(facts: Mapping[str, Any]) -> list[Line]:
    devices, built = facts["devices"], facts["cuda_build"] or facts["hip_build"]
    if devices:
        return [_devices(facts), _nccl(facts)]
    if built is None and facts["gpu_seen"]:
        why = "there is an NVIDIA GPU, and torch is a CPU build"
        way_out = "install the CUDA build of torch that fits the driver (nvidia-smi names it)"
        return [Line("gpu", SLOW, "not used", why, way_out)]
    if built is None:
        return [Line("gpu", OK, "no GPU: CPU build of torch")]
    why = facts["cuda_error"] or f"torch is built for {built} and finds no device"
    way_out = "nvidia-smi must list a device, and CUDA_VISIBLE_DEVICES not hide it"
    if _major(facts["driver_cuda"]) < _major(facts["cuda_build"]):
        way_out = f"a driver for CUDA {built}, or a torch build for CUDA {facts['driver_cuda']}"
    return [Line("gpu", MISSING, "no device", why, way_out)]


def _devices(facts: Mapping[str, Any]) -> Line:
    """A driver runs every CUDA of its major version, older ones too (CUDA's minor version
    compatibility)."""
    names = [f"{d['name']} {d['gib']:.0f} GiB" for d in facts["devices"]]
    value = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    driver, newest = facts["driver"], facts["driver_cuda"]
    if driver is None:
        return Line("gpu", OK, value, "n/a: no NVIDIA driver to ask for its version")
    return Line("gpu", OK, value, f"driver {driver} runs CUDA up to {newest}")


def _nccl(facts: Mapping[str, Any]) -> Line:
    if facts["nccl"] is not None:
        return Line("nccl", OK, facts["nccl"])
    if len(facts["devices"]) == 1:
        return Line("nccl", OK, "not in this build", "n/a: one device needs none")
    why = "between devices gloo takes the way through the host's memory"
    return Line("nccl", MISSING, "not in this build", why, "install a build of torch with NCCL")


def _major(version: str | None) -> int:
    return int(version.partition(".")[0]) if version else 10**6


def compiler(facts: Mapping[str, Any]) -> list[Line]:
    """Inductor writes C++ on a CPU, and needs a C compiler for Triton's launcher on a GPU."""
    path, asked = facts["path"], facts["asked"]
    found = [Line("c++ compiler", OK, facts["version"] or str(path))]
    install = "install one (Debian: apt-get install g++), or name it by CXX"
    if path is None:
        what = "neither g++ nor clang++ on PATH" if asked is None else f"CXX={asked} isn't there"
        found = [Line("c++ compiler", MISSING, what, "compile=inductor needs it", install)]
    if facts["error"] is None:
        value = f"a first small graph in {facts['compile_s']:.1f} s on {facts['device']}"
        return [*found, Line("inductor", OK, value, NOTHING)]
    way_out = install if path is None else "compile=off trains without it; the error names what"
    return [*found, Line("inductor", MISSING, "compiles nothing", facts["error"], way_out)]


NO_CLUSTER = "resolve_ctls_from_dns_srv"
"""Said by SLURM's commands where no file names a cluster: the last place that they look in."""


def slurm(facts: Mapping[str, Any]) -> list[Line]:
    """No fault if it isn't here."""
    tools = [name for name in ("sbatch", "srun", "sinfo") if facts[name] is not None]
    if not tools:
        return [Line("slurm", OK, "not here", "n/a: neither sbatch nor srun nor sinfo on PATH")]
    inside = f"inside job {facts['job']}" if facts["job"] else "in no job"
    value = f"{', '.join(tools)} on PATH, {inside}"
    if NO_CLUSTER in (facts["error"] or ""):
        return [Line("slurm", OK, value, "n/a: no cluster is configured on this machine")]
    if facts["error"] is not None:
        way_out = "scontrol ping says whether the controller answers; ask who runs the cluster"
        return [Line("slurm", MISSING, value, facts["error"], way_out)]
    nodes = ", ".join(f"{number} {state}" for state, number in facts["nodes"].items())
    return [Line("slurm", OK, value, f"nodes: {nodes}" if nodes else "n/a: no sinfo to ask")]
