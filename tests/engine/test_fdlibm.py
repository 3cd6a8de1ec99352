"""The functions of analysis are near those of numpy, and have Java's results where these are special."""

import math

import numpy as np
import pytest

from upriver.engine import fdlibm

NAN, INF = math.nan, math.inf
SPECIAL = [0.0, -0.0, 1.0, -1.0, INF, -INF, NAN, 5e-324, 1e-300, 1.7e308, -1.7e308, 0.5, -0.5, 2.0, 709.9, -745.3]
NUMPYS = {"log": np.log, "cbrt": np.cbrt, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan}
NUMPYS |= {"asinh": np.arcsinh, "acosh": np.arccosh}


@pytest.mark.parametrize("name", fdlibm.OF_ONE)
def test_each_is_near_numpys(name: str) -> None:
    x = np.concatenate([SPECIAL, np.random.default_rng(1).uniform(-30, 30, 500)])
    with np.errstate(all="ignore"):
        numpys = NUMPYS[name] if name in NUMPYS else getattr(np, name)
        np.testing.assert_allclose(fdlibm.OF_ONE[name](x), numpys(x), rtol=1e-15, atol=0)


POWERS = [(1.0, NAN, NAN), (1.0, INF, NAN), (-1.0, -INF, NAN), (NAN, 0.0, 1.0), (-2.0, 3.0, -8.0), (-2.0, 0.5, NAN)]
POWERS += [(0.5, 1e300, 0.0), (2.0, -1e300, 0.0), (10.0, 308.0, 1e308), (-0.0, -3.0, -INF), (2.0, -1074.0, 5e-324)]


@pytest.mark.parametrize(("x", "y", "expected"), POWERS)
def test_powers_are_javas(x: float, y: float, expected: float) -> None:
    with np.errstate(all="ignore"):
        (found,) = fdlibm.pow(np.array([x]), np.array([y])).tolist()
    assert found == pytest.approx(expected, rel=0, abs=0, nan_ok=True)


def test_a_logarithm_is_strictmaths_where_another_library_rounds_otherwise() -> None:
    """``StrictMath.exp(1)``, and logarithms that are whole."""
    with np.errstate(all="ignore"):
        assert fdlibm.log10(np.array([1000.0, 1e15, 1e-5])).tolist() == [3.0, 15.0, -5.0]
        assert fdlibm.exp(np.array([1.0])).tolist() == [2.7182818284590455]
