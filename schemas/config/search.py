"""How the best combination of techniques is searched for."""

from typing import Annotated

from pydantic import Field

from schemas.base import Schema, Seconds


class Search(Schema):
    """The search for the fastest combination whose certificate holds: results/recommended.yaml.

    Combinations that promise most by their single effects take turns with the baseline, the better
    half stays, and the best one loses techniques that it is faster without, and gets those that it
    is faster with.

    Not a part of the run spec: it changes no training.
    """

    budget: Seconds = 60.0
    """Seconds for rounds of the search and for the final comparison; 0 searches nothing. A round
    that would not end within it does not begin."""
    candidates: Annotated[int, Field(ge=1, le=64)] = 6
    """Combinations that the first round measures; each further round keeps the better half."""
    largest: Annotated[int, Field(ge=1, le=64)] = 4
    """Techniques in a combination at most."""
    together: Annotated[int, Field(ge=3, le=256)] = 9
    """Trainings that may be alive at the same time, taking turns. All of them must fit into the
    memory of the device."""
