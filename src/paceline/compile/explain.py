"""What a failed compilation means to the user: one sentence with reason, place and way out."""

from __future__ import annotations

from collections.abc import Iterator


def explain(error: BaseException, fullgraph: bool) -> str | None:
    """None for an error that isn't the compiler's."""
    from torch._dynamo import exc
    from torch._inductor.exc import InvalidCxxCompiler

    for one in _causes(error):
        if isinstance(one, InvalidCxxCompiler):
            return (
                "compile.backend=inductor: no working C++ compiler was found for CPU kernels; "
                "install one (apt install g++) or set CXX, or use compile=off"
            )
    if isinstance(error, exc.FailOnRecompileLimitHit):
        return (
            f"compile.recompile_limit: reached, and compile.fullgraph=true forbids eager "
            f"({_first_line(error)}); raise compile.recompile_limit, set compile.dynamic=true, or "
            "allow eager with compile.fullgraph=false"
        )
    if isinstance(error, exc.Unsupported) and fullgraph:
        return (
            f"compile.fullgraph=true: the graph breaks{_at(error)}: {_first_line(error)}; rewrite "
            "that line, or allow breaks with compile.fullgraph=false"
        )
    if isinstance(error, exc.TorchDynamoException):
        return f"torch.compile failed{_at(error)}: {_first_line(error)}; use compile=off"
    return None


def _causes(error: BaseException) -> Iterator[BaseException]:
    seen: BaseException | None = error
    while seen is not None:
        yield seen
        inner = getattr(seen, "inner_exception", None)
        seen = inner if isinstance(inner, BaseException) else seen.__cause__


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason")


def _at(error: BaseException) -> str:
    """` at file:line` of the user's code where Dynamo stood."""
    stack = getattr(error, "real_stack", None)
    return f" at {stack[-1].filename}:{stack[-1].lineno}" if stack else ""
