"""Variables that a script sets before it imports torch count in its process."""

import os

import pytest

from transformer_core.tune.coordinator import Program, _environment
from transformer_core.tune.early_variables import early_variables


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('os.environ["OMP_NUM_THREADS"] = "4"\nimport torch', {"OMP_NUM_THREADS": "4"}),
        ('import torch\nos.environ["OMP_NUM_THREADS"] = "4"', {}),
        ('from torch import nn\nos.environ["OMP_NUM_THREADS"] = "4"', {}),
        ('import transformers\nos.environ["OMP_NUM_THREADS"] = "4"', {}),
        ('import numpy\nos.environ["OMP_NUM_THREADS"] = str(4)', {"OMP_NUM_THREADS": "4"}),
        ('os.environ.setdefault("OMP_NUM_THREADS", "4")', {"OMP_NUM_THREADS": "4"}),
        ('os.environ.setdefault("MKL_NUM_THREADS", "4")', {}),  # the user has set it
        ('if "OMP_NUM_THREADS" not in os.environ:\n    os.environ["OMP_NUM_THREADS"] = "4"', {"OMP_NUM_THREADS": "4"}),
        ('if not os.environ.get("OMP_NUM_THREADS"):\n    os.environ["OMP_NUM_THREADS"] = "4"', {"OMP_NUM_THREADS": "4"}),
        ('if os.getenv("OMP_NUM_THREADS") is None:\n    os.environ["OMP_NUM_THREADS"] = "4"', {"OMP_NUM_THREADS": "4"}),
        ('if "MKL_NUM_THREADS" not in os.environ:\n    os.environ["MKL_NUM_THREADS"] = "4"\nelse:\n    import torch', {}),
        ('if "MKL_NUM_THREADS" not in os.environ:\n    import torch\nos.environ["OMP_NUM_THREADS"] = "4"', {"OMP_NUM_THREADS": "4"}),
        ('for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):\n    os.environ[name] = "4"', {"OMP_NUM_THREADS": "4", "MKL_NUM_THREADS": "4"}),
        ('for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):\n    os.environ.setdefault(name, "4")', {"OMP_NUM_THREADS": "4"}),
        ('for name in ("MKL_NUM_THREADS", "OMP_NUM_THREADS"):\n    if name in os.environ:\n        continue\n    os.environ[name] = "4"', {}),
        ('for name in names:\n    os.environ["OMP_NUM_THREADS"] = "4"', {}),
        ('os.putenv("MKL_NUM_THREADS", "4")', {"MKL_NUM_THREADS": "4"}),
        (
            'os.environ.update({"CUDA_VISIBLE_DEVICES": "1"}, NCCL_DEBUG="INFO")',
            {"CUDA_VISIBLE_DEVICES": "1", "NCCL_DEBUG": "INFO"},
        ),
        (
            'environ |= {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128", **more}',
            {"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128"},
        ),
        ('def f():\n    os.environ["OMP_NUM_THREADS"] = "4"', {}),
        ('if fast:\n    os.environ["OMP_NUM_THREADS"] = "4"', {}),
        ('if fast:\n    import torch\nos.environ["OMP_NUM_THREADS"] = "4"', {}),
        ('if __name__ == "__main__":\n    os.environ["OMP_NUM_THREADS"] = "4"', {"OMP_NUM_THREADS": "4"}),
        ('os.environ["OMP_NUM_THREADS"] = f"{count}"', {}),
        ('os.environ["PYTHONPATH"] = "/elsewhere"', {}),  # that of the tool would be lost
        ('os.environ["LD_PRELOAD"] = "libjemalloc.so"', {}),  # too late in the script, too
        ("import package.settings", {"OMP_NUM_THREADS": "2"}),
        ("from package import settings", {"OMP_NUM_THREADS": "2"}),
        ('import package.model\nos.environ["OMP_NUM_THREADS"] = "4"', {}),
        ("def f(:", {}),
    ],
)  # fmt: skip
def test_only_constants_before_the_import_of_torch_count(text, expected, tmp_path):
    (tmp_path / "package").mkdir()
    for name, lines in {
        "package/__init__.py": "",
        "package/settings.py": 'import os\nfrom . import settings\nos.environ["OMP_NUM_THREADS"] = "2"',
        "package/model.py": "import torch",
        "train.py": text,
    }.items():
        (tmp_path / name).write_text(lines + "\n")
    given = {"MKL_NUM_THREADS": "1"}
    assert early_variables(tmp_path / "train.py", tmp_path, given) == expected


@pytest.mark.parametrize(
    ("launcher", "threads"), [((), "4"), (("torchrun", "--nproc-per-node=2"), "1")]
)
def test_a_process_starts_with_the_variables_of_its_script(
    launcher, threads, tmp_path, monkeypatch
):
    """torchrun has set the number of threads before the script runs."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    (tmp_path / "train.py").write_text('os.environ.setdefault("OMP_NUM_THREADS", "4")\n')
    program = Program(("train.py",), tmp_path, launcher)
    assert _environment((), {}, program)["OMP_NUM_THREADS"] == threads
    assert "OMP_NUM_THREADS" not in os.environ
    factory = Program(("train:build",), tmp_path, factory={})
    assert "OMP_NUM_THREADS" not in _environment((), {}, factory), "its loop imports torch first"
