"""All planted faults."""

from importlib import import_module
from pathlib import Path

from tests.attacks.planted import fault

for file in sorted(Path(__file__).parent.glob("*_faults.py")):
    if file.stem != "all_faults":
        import_module(f"tests.attacks.planted.{file.stem}")

FAULTS = sorted(fault.FAULTS, key=lambda each: (each.family, each.name))
HARMLESS = fault.HARMLESS
