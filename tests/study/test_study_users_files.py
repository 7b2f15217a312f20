"""Corpora, models and scripts of the user, found without running anything."""

import sys

import pytest
from pydantic import TypeAdapter

from schemas.config.data import AnyCorpus
from schemas.config.run_spec import ScriptTask
from tests.records import write_tree
from transformer_core.study.users_files import MOST_BYTES, corpus_files, own_sources, script_files


@pytest.fixture
def own(tmp_path):
    files = {
        "lab/__init__.py": "raise SystemExit('this package was run')",
        "lab/model.py": "import torch\nfrom . import layers\nfrom helpers import size\n",
        "lab/layers.py": "from .deep.block import Block",
        "lab/deep/block.py": "import json\n\ndef late():\n    import beside\n",
        "lab/unused.py": "",
        "helpers.py": "import lab.model  # a circle",
        "beside.py": "def broken(:",
    }
    return write_tree(tmp_path, files)


def test_a_model_with_its_imports_from_the_same_folder(own):
    found = own_sources("lab.model", [str(own), *sys.path])
    names = [path.relative_to(own).as_posix() for path in found]
    assert names == [
        "beside.py",
        "helpers.py",
        "lab/__init__.py",
        "lab/deep/block.py",
        "lab/layers.py",
        "lab/model.py",
    ]
    assert "lab" not in sys.modules
    # Of an installed module, only its own file counts.
    (found,) = own_sources("torch.nn", sys.path)
    assert found.as_posix().endswith("torch/nn/__init__.py")


def test_installed_packages_are_not_followed(own):
    (own / "beside.py").write_text("import heavy\nimport deep\n")
    heavy = own / "venv/lib/python3.11/site-packages/heavy.py"
    heavy.parent.mkdir(parents=True)
    heavy.write_text("import lab.unused\n")
    (own / "deep.py").write_text(f"x = {'(' * 5000}{')' * 5000}\n")
    found = own_sources("lab.model", [str(own), str(heavy.parent)])
    assert heavy not in found
    assert own / "lab/unused.py" not in found
    assert own / "deep.py" in found
    assert [*own_sources("heavy", [str(own), str(heavy.parent)])] == [heavy]


def test_packages_that_pip_installed_next_to_a_model_are_not_followed(own):
    files = {
        "beside.py": "import heavy.core, single, lab.unused\n",
        "heavy/core.py": "import lab.layers",
        "heavy/__init__.py": "",
        "single.py": "",
        "heavy-1.0.dist-info/RECORD": "heavy/__init__.py,,\nheavy/core.py,,\n",
        "single-1.0.dist-info/RECORD": "single.py,sha256=x,0\n",
    }
    write_tree(own, files)
    found = {path.relative_to(own).as_posix() for path in own_sources("lab.model", [str(own)])}
    assert {"beside.py", "lab/unused.py"} <= found
    assert not {"heavy/core.py", "heavy/__init__.py", "single.py"} & found


@pytest.mark.parametrize("module", ["no_such_module", "lab.no_such_module", "sys"])
def test_a_module_without_a_file(own, module):
    assert own_sources(module, [str(own)]) == {}


@pytest.mark.parametrize("command", [[""], ["x" * 300], ["-m"], ["-m", "x" * 300], ["-m", ".."]])
def test_a_command_without_a_script(own, command):
    """The job reports it."""
    task = ScriptTask(kind="script", command=tuple(command), directory=str(own))
    assert [line.split()[0] for line in script_files(task)] == ["beside.py", "helpers.py"]


SPLITS = ("train", "validation", "test")
TEXT = {"source": "a.en", "target": "a.de"}
URLS = {
    side: {"url": f"https://example.org/x/{name}?y=1", "sha256": "0" * 64}
    for side, name in TEXT.items()
}


@pytest.mark.parametrize(
    ("corpus", "expected"),
    [
        ({"kind": "grammar"}, []),
        ({"kind": "text"} | dict.fromkeys(SPLITS, TEXT), ["a.en", "a.de"]),
        ({"kind": "tsv", "train": "a.tsv", "validation": "b.tsv", "test": "b.tsv"}, ["a.tsv"]),
        ({"kind": "tsv", "train": "x" * 300, "validation": "b.tsv", "test": "b.tsv"}, []),
        ({"kind": "tsv", "train": "missing", "validation": "b.tsv", "test": "b.tsv"}, []),
        ({"kind": "datasets", "folder": "set"}, ["set/data.arrow", "set/train/more.arrow"]),
        (
            {"kind": "url", "folder": "copies"} | dict.fromkeys(SPLITS, URLS),
            ["copies/a.en", "copies/000000000000-a.de"],
        ),
    ],
    ids=lambda value: value["kind"] if isinstance(value, dict) else "",
)
def test_files_of_a_corpus(tmp_path, monkeypatch, corpus, expected):
    monkeypatch.chdir(tmp_path)
    names = "a.en a.de a.tsv b.tsv set/data.arrow set/train/more.arrow copies/a.en copies/000000000000-a.de"
    write_tree(tmp_path, dict.fromkeys(names.split(), ""))
    checked = TypeAdapter(AnyCorpus).validate_python({"name": "mine", **corpus})
    assert corpus_files(checked, "train") == expected


@pytest.mark.parametrize(
    "command",
    [
        *(["train.py"], ["torchrun", "train.py"], ["-m", "train"]),
        *(["-m", "train", "--settings", "settings.py"], ["train.py", "-m", "settings"]),
        ["train.py", "conf/width.yaml", "--rates=conf/rates.yaml", "--data", "data.bin", "=", "."],
    ],
)
def test_files_of_a_script_are_its_folder_and_its_imports(command, tmp_path):
    files = {
        "train.py": "from parts import model\n",
        "settings.py": "width = 3\n",  # read by name, not imported
        **dict.fromkeys(("parts/__init__.py", "parts/model.py", "other/tool.py"), ""),
        **dict.fromkeys(("conf/width.yaml", "conf/rates.yaml", "conf/other.yaml"), ""),
        "data.bin": "0" * (MOST_BYTES + 1),
    }
    write_tree(tmp_path, files)
    task = ScriptTask(kind="script", command=tuple(command), directory=str(tmp_path))
    before = script_files(task)
    names = [line.split()[0] for line in before]
    given = ["conf/rates.yaml", "conf/width.yaml"] * ("conf/width.yaml" in command)
    assert names == [*given, "parts/__init__.py", "parts/model.py", "settings.py", "train.py"]
    (tmp_path / "parts/model.py").write_text("width = 4\n")
    assert script_files(task) != before
    (tmp_path / "train.py").write_text("this is no Python\n")
    assert "train.py" in [line.split()[0] for line in script_files(task)]


def test_a_script_whose_name_has_dots_depends_on_its_imports_too(tmp_path):
    files = dict.fromkeys(("parts/__init__.py", "parts/model.py"), "")
    write_tree(tmp_path, files | {"train_v1.2.py": "from parts import model\n"})
    task = ScriptTask(kind="script", command=("train_v1.2.py",), directory=str(tmp_path))
    names = [line.split()[0] for line in script_files(task)]
    assert names == ["parts/__init__.py", "parts/model.py", "train_v1.2.py"]


def test_a_module_on_the_path_depends_on_its_imports_there(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "src")
    files = {"lab/train.py": "import lab.parts.model\n", "lab/parts/model.py": ""}
    write_tree(tmp_path / "src", files)
    task = ScriptTask(kind="script", command=("-m", "lab.train"), directory=str(tmp_path))
    names = [line.split()[0] for line in script_files(task)]
    assert names == ["src/lab/parts/model.py", "src/lab/train.py"]
