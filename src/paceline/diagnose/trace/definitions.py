"""What every figure means, in words."""

from __future__ import annotations

DEFINITIONS = {
    "whole": "every device activity of the file: the figures that stand flat in the JSON",
    "steps": (
        "device activities whose launch call began inside of a ProfilerStep annotation; "
        "without such annotations, the whole"
    ),
    "span_us": (
        "from the first device activity's start to the last one's end; all shares of the "
        "device are of it"
    ),
    "idle_pct": "no kernel, copy or fill runs",
    "compute_pct": (
        "some kernel runs that is neither communication (NCCL, RCCL) nor a copy or fill"
    ),
    "non_compute_pct": "something runs, but no compute kernel; idle + compute + non_compute = 100",
    "overlap_pct": (
        "of the time in which communication kernels run: that in which a compute kernel runs too"
    ),
    "communication_pct": "a communication kernel runs, whatever else does",
    "communication_only_pct": "a communication kernel runs and no compute kernel",
    "copy_pct": "a copy or fill runs, whatever else does",
    "copy_only_pct": (
        "a copy or fill runs and no kernel; with communication_only it is non_compute"
    ),
    "launch_bound_pct": (
        "idle, and the launch call of the activity that ends the idle stretch has not "
        "returned: the host is late"
    ),
    "queued_pct": (
        "idle, and that call has returned: the activity waits for its stream, an event, or "
        "the way to the device"
    ),
    "unlaunched_pct": (
        "idle, and the trace lacks the launch call; launch_bound + queued + unlaunched = idle"
    ),
    "wall_us": (
        "of the ProfilerStep annotations, else from the main thread's first event to its last"
    ),
    "wait_us": "of a step: communication that no computation hides",
    "own_us": "of a step: its wall without wait",
    "main_thread": (
        "the thread of the steps, else the one with the most operator time; each moment "
        "counts once, for the first of: compile, input, checkpoint, optimizer, backward, "
        "forward, communication, python; they add up to 100"
    ),
    "compile_pct": "torch's compiler is at work (its dynamo_timed regions)",
    "input_pct": "in the DataLoader's next",
    "checkpoint_pct": "in torch.save or a distributed save (seen in traces with stacks only)",
    "optimizer_pct": "in Optimizer.step or zero_grad",
    "backward_pct": "in an operator under autograd's engine",
    "forward_pct": "in any other operator",
    "python_pct": "in none of these: Python between operators",
    "kernels": "total_us: summed durations; share_pct: of all kernels' summed durations",
    "operators": (
        "self_us: duration without operators and annotations that ran inside; share_pct: of "
        "all operators' self time, on all threads"
    ),
    "idle_stretches": (
        "the longest without device activity; start_us: since the first activity; host: the "
        "shortest host event that runs for more than half of it"
    ),
    "syncs": (
        "runtime calls that return only when the device is done; where: the innermost "
        "operator or annotation around them"
    ),
    "collectives": (
        "bytes: the larger buffer of a rank; algorithm_gb_per_s = bytes / duration; "
        "bus_gb_per_s = that x 2(n-1)/n for all_reduce, (n-1)/n for all_gather, "
        "reduce_scatter and all_to_all, 1 for broadcast and reduce (nccl-tests, "
        "doc/PERFORMANCE.md); durations count the wait for other ranks, so both are lower "
        "bounds"
    ),
    "bound": (
        "what takes at least half of the steps; else, if the device is idle for half of them, "
        "what takes half of the idle time; else undetermined; share: 0 to 1, of the steps"
    ),
    "straggler": (
        "of the ranks the one whose own time is a tenth of a step longer than the median of "
        "the others', at least half of that in every common step, and that waits the least"
    ),
}
