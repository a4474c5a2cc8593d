"""Print the polynomial coefficients of the CUDA prelude's math.cuh.

Each has the smallest largest relative error in the function it serves: least squares on Chebyshev points,
reweighted by the error until it is level (Lawson), in float64, against mpmath. Run: python tools/fit_math.py
"""

from __future__ import annotations

from collections.abc import Callable

import mpmath as mp
import numpy as np
from numpy.polynomial import Chebyshev, Polynomial, chebyshev

Function = Callable[[np.ndarray], np.ndarray]
mp.mp.dps = 40


def sampled(f: Callable[[mp.mpf], mp.mpf]) -> Function:
    return lambda x: np.array([float(f(mp.mpf(float(t)))) for t in np.atleast_1d(x)])


def fit(f: Function, weight: Function, low: float, high: float, degree: int) -> tuple[float, np.ndarray]:
    """Largest weighted error and the coefficients, lowest power first."""
    points = 1501
    s = np.cos(np.pi * (np.arange(points) + 0.5) / points)
    x = (low + high) / 2 + (high - low) / 2 * s
    basis, y, w = chebyshev.chebvander(s, degree), f(x), weight(x)
    level = np.ones(points) / points
    best, coefficients = np.inf, np.zeros(degree + 1)
    for _ in range(400):
        scale = np.sqrt(level) * w
        c = np.linalg.lstsq(basis * scale[:, None], y * scale, rcond=None)[0]
        error = np.abs((basis @ c - y) * w)
        if error.max() < best:
            best, coefficients = error.max(), c
        level = level * (error + 1e-3 * error.max())
        level /= level.sum()
    return float(best), Chebyshev(coefficients, domain=[low, high]).convert(kind=Polynomial).coef


def show(name: str, f: Function, weight: Function, low: float, high: float, degree: int) -> None:
    error, coefficients = fit(f, weight, low, high, degree)
    print(f"{name} on [{low:g}, {high:g}], error {error:.1e}:")
    print("  " + ", ".join(f"{np.float32(c):.9g}f" for c in coefficients))


def correction(
    f: Callable[[mp.mpf], mp.mpf], first: int, power: int, limit: mp.mpf
) -> tuple[Function, Function]:
    """(f(t) / t^first - 1) / t^power as a function of t^2, and its weight in the relative error of f."""
    value = sampled(lambda u: (f(mp.sqrt(u)) / mp.sqrt(u) ** first - 1) / u ** (power // 2) if u else limit)
    weight = sampled(lambda u: abs(mp.sqrt(u) ** (first + power) / f(mp.sqrt(u))) if u else mp.mpf(0))
    return value, weight


def main() -> None:
    tail = sampled(lambda t: mp.erfc(t / mp.sqrt(2)) / 2)
    show(
        "log1p: f + f^2 (-1/2 + f P)",
        sampled(lambda t: (mp.log1p(t) - t + t * t / 2) / t**3),
        sampled(lambda t: abs(t**3 / mp.log1p(t))),
        -1 / 3,
        1 / 3,
        7,
    )
    show(
        "log1p_h: x P",
        sampled(lambda t: mp.log1p(t) / t),
        sampled(lambda t: t / mp.log1p(t)),
        -0.125,
        0.125,
        3,
    )
    show(
        "expm1: r + r^2 P",
        sampled(lambda t: (mp.expm1(t) - t) / t**2),
        sampled(lambda t: abs(t * t / mp.expm1(t))),
        -0.35,
        0.35,
        4,
    )
    show(
        "expm1_h: x P", sampled(lambda t: mp.expm1(t) / t), sampled(lambda t: t / mp.expm1(t)), -0.25, 0.25, 3
    )
    tanh = correction(mp.tanh, 1, 2, mp.mpf(-1) / 3)
    show("tanh: x + x^3 P(x^2)", *tanh, 0, 0.6**2, 4)
    show("tanh_h: x + x^3 P(x^2)", *tanh, 0, 0.3**2, 1)
    sine = correction(mp.sin, 1, 2, mp.mpf(-1) / 6)
    show("sin: r + r^3 P(r^2)", *sine, 0, 1.571**2, 3)
    show("sin_h: r + r^3 P(r^2)", *sine, 0, 1.571**2, 2)
    erf = sampled(lambda u: mp.erf(mp.sqrt(u)) / mp.sqrt(u))
    show("erf below 0.9: x P(x^2)", erf, lambda u: 1 / erf(u), 0, 0.9**2, 5)
    show("erf_h below 0.5: x P(x^2)", erf, lambda u: 1 / erf(u), 0, 0.5**2, 2)
    power = sampled(lambda t: mp.log(mp.erfc(t), 2) / t)
    felt = sampled(lambda t: mp.erfc(t) * t * mp.log(2) / mp.erf(t))
    show("erf above: 1 - 2^(a P)", power, felt, 0.9, 4.1, 5)
    show("erf_h above: 1 - 2^(a P)", power, felt, 0.45, 4.0, 3)
    # t = 1 / (1 + 0.265 a): of 0.22 to 0.36 the slope that the polynomial of this degree likes best.
    q, last = 0.265, 14.2
    over = sampled(
        lambda t: mp.erfc((1 / t - 1) / q / mp.sqrt(2)) / 2 * mp.exp(((1 / t - 1) / q) ** 2 / 2) / t
    )
    show("gelu_erf: t P(t)", over, lambda t: 1 / over(t), 1 / (1 + q * last), 1, 8)
    # Held three times as well up to 4.3, below which fp16 results are normal numbers.
    show(
        "gelu_erf_h: log2 Phi(-a)",
        lambda a: np.log2(tail(a)),
        lambda a: np.where(a < 4.3, 1, 1 / 3) * np.log(2),
        0,
        13.3,
        8,
    )


if __name__ == "__main__":
    main()
