"""Other names of methods: those that users of PyTorch, Megatron and DeepSpeed guess. It imports nothing."""

ALIASES = {
    "ddp": "data",
    "dp": "data",
    "zero3": "fsdp",
    "fsdp2": "fsdp",
    "zero": "zero2",
    "tp": "megatron",
    "tensor": "megatron",
    "cp": "context",
    "pp": "pipeline",
}


def alias_text() -> str:
    """Returns all aliases as text, for help.

    >>> alias_text()[:24]
    'ddp, dp: data; zero3, fs'
    """
    by_method: dict[str, list[str]] = {}
    for alias, method in ALIASES.items():
        by_method.setdefault(method, []).append(alias)
    return "; ".join(f"{', '.join(names)}: {method}" for method, names in by_method.items())
