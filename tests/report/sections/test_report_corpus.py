"""The section on the corpus."""

import json
import re
import shutil
from pathlib import Path

from transformer_core.decide.study_results import StudyResults
from transformer_core.report import page


def test_the_vocabulary_that_was_asked_for_stands_beside_the_one_there_is(
    quick_folder: Path, tmp_path: Path
) -> None:
    """A small corpus has fewer tokens than a study may ask for."""
    folder = tmp_path / "results"
    shutil.copytree(quick_folder, folder)
    (file,) = folder.rglob("tokenizer.report.json")
    report = json.loads(file.read_text())
    file.write_text(json.dumps(report | {"vocabulary": 1_234}))
    assert page.main(["--results", str(folder)]) == 0
    asked = StudyResults(folder).study.tokenizer.vocabulary
    assert asked != 1_234
    expected = f"1,234 of the {asked:,} requested tokens"
    assert expected in re.sub("<[^>]*>", "", (folder / "report.html").read_text())
