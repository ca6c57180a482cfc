"""The source tree: packages import what they may, without cycles; public names, private APIs, sizes."""

from __future__ import annotations

from pathlib import Path

import architecture
import pytest

import raddle

ROOT = Path(__file__).parents[1]
SRC = ROOT / "src"

# Package -> the packages that it may import; imports in functions and for types count too.
_BELOW_SEARCHES = "simulation costs program plans graph clusters"
_BELOW_RUNTIME = "sync transport program plans graph zoo"
ALLOWED_IMPORTS = {
    "graph": "",
    "zoo": "graph",
    "clusters": "",
    "transport": "",
    "plans": "graph",
    "program": "plans graph clusters",
    "sync": "transport program plans graph",
    "costs": "program clusters plans graph",
    "simulation": "costs program plans graph clusters",
    "runtime": _BELOW_RUNTIME,
    "searches": _BELOW_SEARCHES,
    "verification": f"runtime {_BELOW_RUNTIME} {_BELOW_SEARCHES}",
    "probe": f"runtime {_BELOW_RUNTIME} {_BELOW_SEARCHES}",
    "calibration": f"searches {_BELOW_SEARCHES}",
    "lab": "clusters transport",
    "reports": f"searches {_BELOW_SEARCHES}",
}
ALLOWED_IMPORTS["api"] = " ".join(ALLOWED_IMPORTS)
ALLOWED_IMPORTS["cli"] = "api reports lab"


def test_packages_import_what_the_table_has():
    assert set(ALLOWED_IMPORTS) == {
        path.parent.name for path in (SRC / "raddle").glob("*/__init__.py")
    }
    assert architecture.forbidden_imports(SRC, ALLOWED_IMPORTS) == []


def test_no_module_is_in_a_ring_of_imports():
    assert architecture.cycles(SRC) == []


def test_no_private_api_of_torch_is_used():
    assert architecture.private_torch(SRC) == []


def test_no_file_and_no_class_is_too_large():
    assert architecture.too_large(SRC) == []


def test_experiments_import_public_names_and_the_api_alone():
    assert architecture.private_imports(SRC, ROOT) == []


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("from raddle.graph.graph import Graph\n", "raddle.graph.graph"),
        ("def f():\n    from raddle import zoo\n", "raddle.zoo"),
        ("from raddle.sync.item import UpdateEvent\n", "raddle.sync.item"),
        ("import raddle.cli.main\n", "raddle.cli.main"),
    ],
)
def test_a_planted_import_of_an_experiment_is_found(text, target, tmp_path):
    public = "import raddle\nfrom raddle import cluster, sync\nfrom raddle.api import plans\n"
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "a.py").write_text(public + text)
    assert architecture.private_imports(SRC, tmp_path) == [f"experiments.a imports {target}"]


# Public names planned for later versions, besides those of raddle.__all__.
PLANNED_NAMES = (
    "plan",
    "compare",
    "simulate",
    "verify",
    "explain",
    "load_plan",
    "sweep",
    "capacity",
)


def test_no_module_has_a_public_name():
    assert architecture.shadowed_public_names(SRC, {*raddle.__all__, *PLANNED_NAMES}) == []


@pytest.mark.parametrize("name", ["plan/__init__.py", "compare.py", "cluster/a.py"])
def test_a_planted_module_with_a_public_name_is_found(name, tmp_path):
    plant(tmp_path, "cluster/__init__.py" if "cluster" in name else name, "")
    plant(tmp_path, name, "")
    assert len(architecture.shadowed_public_names(tmp_path, {*raddle.__all__, *PLANNED_NAMES})) == 1


@pytest.fixture(scope="module")
def names():
    """The public names if nothing else is imported."""
    return architecture.public_names(SRC, [], seed=0, first=False)


@pytest.mark.parametrize("first", [True, False], ids=["looked up first", "imported first"])
@pytest.mark.parametrize("seed", [1, 2])
def test_public_names_stay_what_they_are_whatever_is_imported(seed, first, names):
    assert set(names) == set(raddle.__all__)
    assert not any(kind == "module" for kind, *_ in names.values())
    wanted = architecture.modules(SRC)
    assert architecture.public_names(SRC, wanted, seed=seed, first=first) == names


@pytest.mark.parametrize("first", [True, False])
def test_a_planted_package_with_a_public_name_takes_its_place(first, tmp_path):
    lazy = (
        "__all__ = ['plan']\ndef __getattr__(name):\n    if name == 'plan':\n        return len\n"
    )
    plant(tmp_path, "__init__.py", f"{lazy}    raise AttributeError(name)\n")
    plant(tmp_path, "plan/__init__.py", "")
    before = architecture.public_names(tmp_path, [], seed=0, first=False)
    after = architecture.public_names(tmp_path, ["raddle.plan"], seed=0, first=first)
    assert before == {"plan": ["builtin_function_or_method", "builtins", "len", False]}
    assert after["plan"] == ["module", "", "raddle.plan", first]


PLANTED_IMPORTS = {
    "an import at the top": ("graph/box.py", "from raddle.searches import auto\n"),
    "an import in a function": ("graph/box.py", "def f():\n    import raddle.clusters\n"),
    "an import for types": (
        "graph/box.py",
        "if TYPE_CHECKING:\n    from raddle.runtime import job\n",
    ),
}


@pytest.mark.parametrize("planted", PLANTED_IMPORTS.values(), ids=PLANTED_IMPORTS)
def test_a_planted_import_is_found(planted, tmp_path):
    assert len(architecture.forbidden_imports(plant(tmp_path, *planted), ALLOWED_IMPORTS)) == 1


def test_a_planted_cycle_is_found(tmp_path):
    plant(tmp_path, "graph/a.py", "def f():\n    from raddle.graph import b\n")
    plant(tmp_path, "graph/b.py", "from raddle.graph.c import x\n")
    plant(tmp_path, "graph/c.py", "import raddle.graph.a\n")
    assert architecture.cycles(tmp_path) == ["raddle.graph.a and raddle.graph.b and raddle.graph.c"]


@pytest.mark.parametrize(
    "text",
    [
        "import torch\ntorch._C._current_graph_task_id()\n",
        "import torch\ntorch.autograd.Variable._execution_engine\n",
        "import torch.distributed as dist\ndist.distributed_c10d._get_default_store()\n",
        "from torch._dynamo import config\n",
        "import torch._dynamo.config\n",
        "from torch.nn.modules.module import _global_forward_hooks\n",
    ],
)
def test_a_planted_private_api_is_found(text, tmp_path):
    assert architecture.private_torch(plant(tmp_path, "runtime/a.py", text))


def test_public_torch_is_no_private_api(tmp_path):
    text = "import torch\ntorch.__version__\ntorch.add_\nself._torch._x\n"
    assert architecture.private_torch(plant(tmp_path, "runtime/a.py", text)) == []


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("\n" * 401, "raddle.a: lines"),
        (
            "class A:\n" + "".join(f"    def m{i}(self): ...\n" for i in range(16)),
            "raddle.a.A: methods",
        ),
        (
            "class A:\n    def f(self):\n" + "".join(f"        self.a{i} = 0\n" for i in range(13)),
            "raddle.a.A: attributes",
        ),
    ],
)
def test_a_planted_size_is_found(text, what, tmp_path):
    assert architecture.too_large(plant(tmp_path, "a.py", text)) == [what]


def plant(folder: Path, name: str, text: str) -> Path:
    """Writes a module of a package named raddle into a folder."""
    path = folder / "raddle" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return folder


def test_files_of_tests_have_names_of_their_own():
    """pytest imports test files by file name: two files with the same name cannot be collected together."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))
