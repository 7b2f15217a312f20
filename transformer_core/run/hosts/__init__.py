"""Several hosts: told apart, started by hand or by Slurm, or made on this machine with a link."""
