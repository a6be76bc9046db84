"""Launchers to copy or to call: launch.sh for one machine, submit.sbatch for SLURM."""
