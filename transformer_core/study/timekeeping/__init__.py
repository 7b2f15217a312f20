"""How long a study is going to take, and how far it is."""
