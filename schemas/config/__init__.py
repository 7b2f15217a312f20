"""Files that a user writes: studies, variants, claims, and the sections of a run spec."""
