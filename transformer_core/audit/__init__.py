"""Does a training do what it says? Tests properties that every training must have, without a reference."""
