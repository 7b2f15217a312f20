"""The table of the machine."""

from transformer_core.decide.study_results import StudyResults
from transformer_core.report.contents import Row


def machine(results: StudyResults) -> list[Row]:
    """A row per property of the machine and of each GPU."""
    rows: list[Row] = []
    for field, value in results.hardware.model_dump(exclude={"gpus", "cpu_features"}).items():
        rows.append({"device": "host", "property": field, "value": value})
    features = " ".join(results.hardware.cpu_features)
    rows.append({"device": "host", "property": "cpu_features", "value": features})
    for gpu in results.hardware.gpus:
        for field, value in gpu.model_dump(exclude={"index"}).items():
            rows.append({"device": f"gpu {gpu.index}", "property": field, "value": value})
    return rows
