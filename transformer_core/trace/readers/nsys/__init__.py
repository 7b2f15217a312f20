"""Reader of the SQLite exports of Nsight Systems."""
