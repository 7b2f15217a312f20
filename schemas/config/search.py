"""Search for the best combination of techniques."""

from typing import Annotated

from pydantic import Field

from schemas.base import Schema, Seconds


class Search(Schema):
    """The search for the fastest combination with a valid certificate: results/recommended.yaml.

    It starts from all techniques at once and from those that pay off individually, removes or adds
    one technique at a time, and continues from any combination that is faster.

    Not part of the run spec: it does not affect training.
    """

    budget: Seconds = 60.0
    """Seconds for the search's sessions and the final comparison; 0 disables the search. No
    session starts that would not finish in time."""
    candidates: Annotated[int, Field(ge=1, le=64)] = 6
    """Number of starting combinations, at least two if that many exist."""
    largest: Annotated[int, Field(ge=1, le=64)] = 64
    """Maximum techniques in a combination."""
    together: Annotated[int, Field(ge=3, le=256)] = 9
    """Trainings that may run at the same time, taking turns. All of them must fit into device
    memory."""
