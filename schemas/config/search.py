"""How the best combination of techniques is searched for."""

from typing import Annotated

from pydantic import Field

from schemas.base import Schema, Seconds


class Search(Schema):
    """The search for the fastest combination whose certificate holds: results/recommended.yaml.

    It starts from all techniques at once as well as from those that pay alone, leaves out and adds
    one technique after the other where it stands, and goes on from what is faster.

    Not a part of the run spec: it changes no training.
    """

    budget: Seconds = 60.0
    """Seconds for sessions of the search and for the final comparison; 0 searches nothing. A session
    that would not end within it does not begin."""
    candidates: Annotated[int, Field(ge=1, le=64)] = 6
    """Combinations that it starts from, two at least where there are as many."""
    largest: Annotated[int, Field(ge=1, le=64)] = 64
    """Techniques in a combination at most."""
    together: Annotated[int, Field(ge=3, le=256)] = 9
    """Trainings that may be alive at the same time, taking turns. All of them must fit into the
    memory of the device."""
