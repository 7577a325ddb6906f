"""Plans, their workload and software, and their files."""
