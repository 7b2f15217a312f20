"""From the settings of a study to its plan, and what contradicts itself on the way."""
