"""Starting the processes of a job, on one host or several, and learning how they ended."""
