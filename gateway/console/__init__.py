"""The web console: pages for people on the HTTP port, made of the management surface and of nothing else."""
