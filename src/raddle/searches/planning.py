"""Plans by name of a method: a baseline, or a search."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from raddle.clusters import Cluster
from raddle.costs.profile import Profile
from raddle.errors import InputError
from raddle.graph.graph import Graph
from raddle.plans.file import DTYPES
from raddle.plans.plan import STATISTICS, Plan, describe_inputs, parameter_shapes
from raddle.plans.schedule import read
from raddle.plans.schedules import NAMES
from raddle.plans.sync import read_sync
from raddle.plans.validation import validate
from raddle.searches.attempts import Attempts
from raddle.searches.pins import read_pin
from raddle.searches.recomputing import blocks
from raddle.searches.registry import METHODS, method_named
from raddle.searches.settings import AUTO, BUDGET, Found, OnProgress, Settings
from raddle.searches.syncs import host_seconds, with_sync


def plan_for(
    graph: Graph,
    cluster: Cluster,
    method: str = "auto",
    *,
    model: str = "",
    batch: int | None = None,
    bn: str = "local",
    sync: str = AUTO,
    optimizer: str = "sgd",
    recompute: int | None = None,
    budget: float = BUDGET,
    seed: int = 0,
    pins: Sequence[str] = (),
    reduction: bool | None = None,
    profile: Profile | None = None,
    heard: OnProgress = lambda step: None,
) -> Plan:
    """The plan of a method for all devices of a cluster.

    `model` is the name to load it by again; `batch` is the global batch, the graph's where none is given.
    `recompute` keeps values for the backward only at the borders of so many blocks. A search takes about
    `budget` seconds and leaves alone what is pinned; `reduction` says whether sums may be split, which
    `flexflow` and `auto` otherwise do, and `optcnn` does not. `sync` is a way of plans/sync/; by
    itself `auto` takes P3 where that is faster, and everything else all-reduces. The order in which
    `p3:collective` sums is part of the plan:

        plan = raddle.search(graph, raddle.cluster("p100:4x4"), budget=30, pins=["features.*=n/16"])
    """
    check_settings([method], bn=bn, sync=sync)
    settings = Settings(
        bn=bn, sync=sync, optimizer=optimizer, profile=profile, reduction=reduction, budget=budget,
        seed=seed, pins=tuple(read_pin(pin) for pin in pins), heard=heard,
    )  # fmt: skip
    found = find(graph, cluster, method, settings)
    return plan_of(
        graph, cluster, method, found, settings, model=model, batch=batch, recompute=recompute
    )


def find(graph: Graph, cluster: Cluster, method: str, settings: Settings) -> Found:
    """The tiles of a method, and, of a search, how it went."""
    return METHODS[method].find(graph, cluster, settings)


def plan_of(
    graph: Graph,
    cluster: Cluster,
    method: str,
    found: Found,
    settings: Settings,
    *,
    model: str = "",
    batch: int | None = None,
    recompute: int | None = None,
    attempts: Attempts | None = None,
) -> Plan:
    """A plan with all that its file needs; of a pipeline, for the graph of a micro-batch.

    Where the method chooses how to synchronise, `attempts` learns what failed and the plan is left alone.
    """
    kept = found.recompute if recompute is None else recompute
    batch = graph.batch if batch is None else batch
    graph = found.staged.graph if found.staged is not None else graph
    plan = Plan(
        found.tiles,
        len(cluster.devices),
        model=model or graph.name,
        fingerprint=graph.fingerprint(),
        batch=batch,
        dtype=_dtype(graph),
        cluster=cluster.to_dict(),
        method=method,
        recompute=() if kept is None else blocks(graph, kept),
        sums=found.sums,
        inputs=describe_inputs(graph),
        parameters=parameter_shapes(graph),
        **settings.plan,
    )
    if settings.schedule and found.staged is None:
        plan = replace(plan, schedule=settings.schedule)
    if found.staged is not None:
        own = found.staged.fields
        plan = replace(plan, **{**own, "recompute": own["recompute"] or plan.recompute})
    if settings.sync == AUTO and method in METHODS and METHODS[method].chooses_sync:
        with (attempts or Attempts()).attempt("other ways to synchronise"):
            plan = _faster(graph, plan, cluster, settings)
    elif plan.syncing.collective:
        plan = _ordered(graph, plan, cluster, settings)
    validate(plan, graph)
    return plan


def _faster(graph: Graph, plan: Plan, cluster: Cluster, settings: Settings) -> Plan:
    from raddle.searches.predict import judge  # numba is needed to simulate alone

    def step(candidate: Plan) -> float:
        timeline = judge(graph, candidate, cluster, settings.profile)
        return timeline.step_seconds + host_seconds(timeline)

    return with_sync(plan, cluster, step, lambda p: _ordered(graph, p, cluster, settings))


def _ordered(graph: Graph, plan: Plan, cluster: Cluster, settings: Settings) -> Plan:
    from raddle.searches.order import with_order  # likewise

    return with_order(graph, plan, cluster, settings.profile)


def check_pipeline(method: str, settings: Settings) -> None:
    """Raises InputError where a schedule, stages or micro-batches are asked of what has none."""
    threaded = settings.schedule.split(":")[0] == "threaded"
    asked = settings.schedule or settings.stages or settings.microbatches
    has_stages = method in METHODS and METHODS[method].has_stages
    if asked and not has_stages and not threaded:
        raise InputError(
            f"'{method}' has no stages: --schedule, --stages and --microbatches are for --method "
            "pipeline; --schedule threaded:4 goes with any."
        )
    if threaded and (has_stages or settings.stages or settings.microbatches):
        raise InputError(
            f"--schedule {settings.schedule} overlaps steps on any tiles: name another method than "
            "pipeline, and no stages."
        )
    if settings.schedule and settings.schedule not in NAMES and not threaded:
        written = read(settings.schedule)
        for asked, found, what in (
            (settings.stages, written.stages, "stages"),
            (settings.microbatches, written.microbatches, "microbatches"),
        ):
            if asked is not None and asked != found:
                raise InputError(
                    f"--{what} is {asked} and the written schedule has {found}: leave it out."
                )


def check_settings(methods: Sequence[str], *, bn: str, sync: str) -> None:
    """Raises InputError for a method or setting that does not exist, before anything is captured."""
    for name in methods:
        method_named(name)
    if bn not in STATISTICS:
        raise InputError(f"bn is '{bn}': choose {' or '.join(STATISTICS)}.")
    if sync != AUTO:
        read_sync(sync)


def _dtype(graph: Graph) -> str:
    """The default type with which the model was built, by the real type of its first parameter."""
    dtypes = [p.dtype for p in graph.parameters] or [v.dtype for v in graph.values.values()]
    names = [str(d.to_real()).removeprefix("torch.") for d in dtypes]
    return next((name for name in names if name in DTYPES), "float32")
