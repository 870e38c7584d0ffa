"""Exact chains: the batch-service engine as a discrete-time Markov chain, its laws and how far they can be trusted."""
