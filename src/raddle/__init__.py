"""raddle finds the fastest way to train a PyTorch module on a cluster, simulates it and runs it.

    result = raddle.plan(model, batch, loss, cluster="h100:4x8")  # or plan("vgg16", 64, cluster=...)
    result.step_ms, result.fits, result.explain("fc1"), result.timeline, result.save("plan.json")
    result = raddle.load_plan("plan.json")            # if its model has no name: model=, example=, loss=
    raddle.compare(model, batch, loss, cluster="h100:4x8", methods=["data", "auto"])   # a table; .best
    raddle.simulate(result, cluster="p100:4x8")       # the timeline of a plan, here on another cluster
    raddle.verify(result)                             # the same numbers as the plain module?
    raddle.report([result], "page.html")              # one page that works offline
    trainer = raddle.parallelize(model, optimizer, loss=loss, example=batch, plan="plan.json")   # trains

loss(model, batch) returns a scalar; raddle.supervised(F.cross_entropy) is one for batches (input, target).
A cluster is a text such as "p100:4x4" or "local:2", a YAML file, or an object of raddle.cluster.
raddle.capture(model, batch, loss) is the graph of a step; plan and compare take it in place of the model.
The classes: PlanResult, Trainer, and InputError, a mistake of the user in one sentence. help(raddle.plan)
says more, and `raddle --help` in a terminal does the same.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from raddle.version import __version__ as __version__

if TYPE_CHECKING:
    from raddle.api.comparing import compare
    from raddle.api.loading import load_plan
    from raddle.api.plan_result import PlanResult, simulate
    from raddle.api.planning import plan
    from raddle.api.reporting import report
    from raddle.api.training import parallelize
    from raddle.api.verifying import verify
    from raddle.clusters import cluster
    from raddle.errors import InputError
    from raddle.graph.capture import capture
    from raddle.graph.supervised import supervised
    from raddle.runtime.trainer import Trainer

__all__ = [
    "InputError", "PlanResult", "Trainer", "capture", "cluster", "compare", "load_plan", "parallelize",
    "plan", "report", "simulate", "supervised", "verify",
]  # fmt: skip

# Public name -> its module. A name is imported at its first use, so that `import raddle` is fast.
_PUBLIC = {
    "InputError": "raddle.errors",
    "PlanResult": "raddle.api.plan_result",
    "Trainer": "raddle.runtime.trainer",
    "capture": "raddle.graph.capture",
    "cluster": "raddle.clusters",
    "compare": "raddle.api.comparing",
    "load_plan": "raddle.api.loading",
    "parallelize": "raddle.api.training",
    "plan": "raddle.api.planning",
    "report": "raddle.api.reporting",
    "simulate": "raddle.api.plan_result",
    "supervised": "raddle.graph.supervised",
    "verify": "raddle.api.verifying",
}

# Names that people try, and what they find instead.
_INSTEAD = {
    "Graph": "raddle.capture(model, batch, loss) returns a graph",
    "Plan": "raddle.plan(...).plan is a Plan, and the class is raddle.plans.plan.Plan",
    "explain": "raddle.plan(...) and raddle.load_plan(path) return a result with explain(op)",
    "load": "raddle.load_plan(path) reads a plan, and trainer.load_state_dict a checkpoint",
    "run": "raddle.parallelize trains with a plan, and `raddle run plan.json` does in a terminal",
    "save": "raddle.plan(...) returns a result with save(path)",
    "search": "raddle.plan(model, batch, loss, cluster=...) searches a plan",
}


if not TYPE_CHECKING:  # a type checker shall still report unknown names

    def __getattr__(name: str) -> object:
        """Imports a public name at its first use, and returns its value."""
        if name not in _PUBLIC:
            advice = f": {_INSTEAD[name]}." if name in _INSTEAD else ""
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}{advice}")
        value = getattr(import_module(_PUBLIC[name]), name)
        globals()[name] = value  # the next access does not call __getattr__
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_PUBLIC})
