"""What the files of config/ declare beside studies: sweeps of variants, and claims."""
