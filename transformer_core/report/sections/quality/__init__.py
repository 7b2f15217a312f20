"""How soon the baseline and the recommendation translate well."""
