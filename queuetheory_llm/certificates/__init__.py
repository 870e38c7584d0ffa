"""Proofs as data, and the checker that believes nothing else."""
