"""Makes a plan by the name of a method: runs the method and completes its tiles to a whole plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from raddle.clusters import Cluster
from raddle.costs.profile import Profile
from raddle.errors import InputError
from raddle.graph.graph import Graph
from raddle.plans.plan import BN_SCOPES, Plan, describe_inputs, parameter_shapes
from raddle.plans.plan_file import DTYPES
from raddle.plans.schedule import schedule_from_text
from raddle.plans.schedules import NAMES
from raddle.plans.sync import read_sync
from raddle.plans.validation import validate
from raddle.searches.attempts import Attempts
from raddle.searches.choose_sync import host_seconds, with_fastest_sync
from raddle.searches.pins import read_pin
from raddle.searches.recomputation import recompute_blocks
from raddle.searches.registry import METHODS, method_named
from raddle.searches.settings import AUTO, BUDGET, OnProgress, SearchResult, Settings


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
    on_progress: OnProgress = lambda step: None,
) -> Plan:
    """Returns the plan of a method for all devices of a cluster. Public as `raddle.search`.

    Example: `raddle.search(graph, raddle.cluster("p100:4x4"), budget=30, pins=["features.*=n/16"])`.

    method: a baseline or a search, by name (registry.py).
    model: the name by which the model can be loaded again, stored in the plan.
    batch: the number of samples in the global batch; None: the batch of the graph.
    bn: the samples over which batch norm takes its statistics (Settings.bn).
    sync: a sync kind of plans/sync/. With "auto", the method `auto` takes P3, HSDP or smaller buckets if
        they are faster (choose_sync.py); all other methods all-reduce.
    recompute: activation checkpointing in this many blocks; None: the method decides.
    budget: seconds that a search takes, roughly. seed: the seed of the search's random numbers.
    pins: splits that the search must not change, as in "features.*=n/16".
    reduction: whether summed dimensions may be split; None: yes for `flexflow` and `auto`, no for `optcnn`.
    profile: measured times of operators; None: all times are estimated from FLOPs and bytes.
    on_progress: is called with progress reports (settings.OnProgress).

    >>> import raddle, torch
    >>> loss = raddle.supervised(torch.nn.functional.mse_loss)
    >>> batch = torch.randn(8, 4), torch.randn(8, 2)
    >>> graph = raddle.capture(torch.nn.Linear(4, 2), batch, loss)
    >>> plan = raddle.search(graph, raddle.cluster("local:2"), "data")
    >>> plan.devices, plan.sync
    (2, 'allreduce')
    """
    check_settings([method], bn=bn, sync=sync)
    settings = Settings(
        bn=bn, sync=sync, optimizer=optimizer, profile=profile, reduction=reduction, budget=budget,
        seed=seed, pins=tuple(read_pin(pin) for pin in pins), on_progress=on_progress,
    )  # fmt: skip
    result = run_method(graph, cluster, method, settings)
    return build_plan(
        graph, cluster, method, result, settings, model=model, batch=batch, recompute=recompute
    )


def run_method(graph: Graph, cluster: Cluster, method: str, settings: Settings) -> SearchResult:
    """Runs a method; returns its tiles and, for a search, how the search went."""
    return METHODS[method].find(graph, cluster, settings)


def build_plan(
    graph: Graph,
    cluster: Cluster,
    method: str,
    result: SearchResult,
    settings: Settings,
    *,
    model: str = "",
    batch: int | None = None,
    recompute: int | None = None,
    attempts: Attempts | None = None,
) -> Plan:
    """Returns a complete, valid plan, given the result of a method.

    The plan of a pipeline is for the graph of one micro-batch. If the method chooses the sync kind, it is
    chosen here; if that fails, `attempts` records the failure and the plan keeps the default sync kind.
    model, batch, recompute: see plan_for.
    """
    block_count = result.recompute if recompute is None else recompute
    batch = graph.batch if batch is None else batch
    graph = result.pipeline.graph if result.pipeline is not None else graph
    plan = Plan(
        result.tiles,
        len(cluster.devices),
        model=model or graph.name,
        fingerprint=graph.fingerprint(),  # a hash, to refuse the plan for another graph
        batch=batch,
        dtype=_dtype(graph),
        cluster=cluster.to_dict(),
        method=method,
        recompute=() if block_count is None else recompute_blocks(graph, block_count),
        sums=result.sums,  # where partial sums are added, by operator
        inputs=describe_inputs(graph),
        parameters=parameter_shapes(graph),
        **settings.plan_fields,
    )
    if settings.schedule and result.pipeline is None:
        plan = replace(plan, schedule=settings.schedule)
    if result.pipeline is not None:
        pipeline_fields = result.pipeline.plan_fields
        plan = replace(
            plan, **{**pipeline_fields, "recompute": pipeline_fields["recompute"] or plan.recompute}
        )
    if settings.sync == AUTO and method in METHODS and METHODS[method].chooses_sync:
        with (attempts or Attempts()).attempt("other sync kinds"):
            plan = _choose_sync(graph, plan, cluster, settings)
    elif plan.parsed_sync.collective:  # p3:collective: the plan must say the order of its slices
        plan = _with_slice_order(graph, plan, cluster, settings)
    validate(plan, graph)
    return plan


def _choose_sync(graph: Graph, plan: Plan, cluster: Cluster, settings: Settings) -> Plan:
    """Returns the plan with the fastest sync kind."""
    from raddle.searches.predict import simulate_steps  # imports numba: only if needed

    def step_seconds(candidate: Plan) -> float:
        timeline = simulate_steps(graph, candidate, cluster, settings.profile)
        # host_seconds: CPU time for messages and all-reduces of slices. It is 0 if the cluster states host
        # overheads: the simulation then counts that time.
        return timeline.step_seconds + host_seconds(timeline)

    return with_fastest_sync(
        plan, cluster, step_seconds, lambda p: _with_slice_order(graph, p, cluster, settings)
    )


def _with_slice_order(graph: Graph, plan: Plan, cluster: Cluster, settings: Settings) -> Plan:
    from raddle.searches.slice_order import with_slice_order  # imports numba

    return with_slice_order(graph, plan, cluster, settings.profile)


def check_pipeline(method: str, settings: Settings) -> None:
    """Raises InputError if a schedule, stages or micro-batches do not go with the method.

    The schedule `threaded:N` runs N steps at once on any tiles, so every method accepts it.
    """
    threaded = settings.schedule.split(":")[0] == "threaded"
    requested = settings.schedule or settings.stages or settings.microbatches
    has_stages = method in METHODS and METHODS[method].has_stages
    if requested and not has_stages and not threaded:
        raise InputError(
            f"'{method}' has no stages: --schedule, --stages and --microbatches are for --method "
            "pipeline; --schedule threaded:4 goes with any."
        )
    if threaded and (has_stages or settings.stages or settings.microbatches):
        raise InputError(
            f"--schedule {settings.schedule} overlaps steps on any tiles: name another method than "
            "pipeline, and no stages."
        )
    # NAMES: the schedules that have a name. Any other text is a schedule written out action by action.
    if settings.schedule and settings.schedule not in NAMES and not threaded:
        schedule = schedule_from_text(settings.schedule)
        for requested, scheduled, option in (
            (settings.stages, schedule.stages, "stages"),
            (settings.microbatches, schedule.microbatches, "microbatches"),
        ):
            if requested is not None and requested != scheduled:
                raise InputError(
                    f"--{option} is {requested} and the written schedule has {scheduled}: leave it out."
                )


def check_settings(methods: Sequence[str], *, bn: str, sync: str) -> None:
    """Raises InputError for a method, `bn` or `sync` that does not exist."""
    for name in methods:
        method_named(name)
    if bn not in BN_SCOPES:
        raise InputError(f"bn is '{bn}': choose {' or '.join(BN_SCOPES)}.")
    if sync != AUTO:
        read_sync(sync)


def _dtype(graph: Graph) -> str:
    """Returns the name of the model's data type: the first floating-point type among its parameters.

    A complex parameter counts as its real type. A model without parameters has the first floating-point
    type among its values.
    """
    dtypes = [p.dtype for p in graph.parameters] or [v.dtype for v in graph.values.values()]
    names = [str(d.to_real()).removeprefix("torch.") for d in dtypes]
    return next((name for name in names if name in DTYPES), "float32")
