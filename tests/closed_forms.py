"""Closed forms of queues, each with its source."""

import cmath
import math

import numpy as np


def take_all_sojourn(load, alpha, tau0):
    """Inoue 2021: mean sojourn from the stationary law of the batch size, B' = A + [A = 0], A ~ Poisson(...)."""
    rate, sizes = load / alpha, np.arange(1, 400)
    mean = rate * (alpha * sizes + tau0)
    counts = np.arange(400)
    logs = counts * np.log(mean)[:, None] - mean[:, None] - np.array([math.lgamma(count + 1) for count in counts])
    law = np.exp(logs)
    law[:, 1] += law[:, 0]
    stationary = np.linalg.matrix_power(law[:, 1:], 1 << 12)[0]
    first, second = stationary @ sizes, stationary @ sizes**2
    return alpha + tau0 + (1 + 2 * load) * (second - first) / (2 * rate * first)


def vanilla(p):
    """Mean number under vanilla vLLM with one prompt token and one decode token, two tokens a batch."""
    r = (-(1 - p) + math.sqrt((1 - p) ** 2 + 4 * p * (1 - p))) / (2 * (1 - p))
    return p + r / (1 - r)


def bailey(mean, b):
    """Bailey 1954: mean queue at slot starts after Poisson(mean) arrivals, at most ``b`` served a slot."""
    queue = mean + (mean**2 - b * (b - 1)) / (2 * (b - mean))
    for k in range(1, b):
        z, unity = 0j, cmath.exp(2j * math.pi * k / b)
        for _ in range(500):  # the root of z^b = e^{m(z - 1)} on the k-th branch
            z = unity * cmath.exp(mean * (z - 1) / b)
        queue += (1 / (1 - z)).real
    return queue
