"""exp, log, pow and the like, to the last bit as Java's StrictMath gives them, over whole arrays.

Spark computes them by fdlibm, whose results differ in the last bit from those of other libraries. The steps and the
constants here are fdlibm's, of which this notice is part: Copyright (C) 1993 by Sun Microsystems, Inc. All rights
reserved. Developed at SunSoft, a Sun Microsystems, Inc. business. Permission to use, copy, modify, and distribute this
software is freely granted, provided that this notice is preserved.

All branches are computed for all values; what they give for values that are not theirs does not count. numpy's warnings
about these must be off.
"""

from collections.abc import Callable, Mapping
from functools import reduce

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]
Longs = npt.NDArray[np.int64]

_TWO54 = 2.0**54
_LN2_HI, _LN2_LO = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_LN2 = 0.6931471805599453
_INV_LN2 = 1.44269504088896338700e00
_EXP_MAX, _EXP_MIN = 7.09782712893383973096e02, -7.45133219101941108420e02
_P = (
    1.66666666666666019037e-01,
    -2.77777777770155933842e-03,
    6.61375632143793436117e-05,
    -1.65339022054652515390e-06,
    4.13813679705723846039e-08,
)
_LG = (
    6.666666666666735130e-01,
    3.999999999940941908e-01,
    2.857142874366239149e-01,
    2.222219843214978396e-01,
    1.818357216161805012e-01,
    1.531383769920937332e-01,
    1.479819860511658591e-01,
)


def _high(x: Doubles) -> Longs:
    """The upper 32 bits, signed."""
    found: Longs = x.view(np.int64) >> 32
    return found


def _of_high(high: Longs) -> Doubles:
    return (high << 32).view(np.float64)


def _with_high(x: Doubles, high: Longs) -> Doubles:
    return ((high << 32) | (x.view(np.int64) & 0xFFFFFFFF)).view(np.float64)


def _cut(x: Doubles) -> Doubles:
    """Without the lower 32 bits."""
    return (x.view(np.int64) & -0x100000000).view(np.float64)


def _scaled(x: Doubles, k: Longs) -> Doubles:
    """The exponent raised by k, without regard to its range."""
    return (x.view(np.int64) + (k << 52)).view(np.float64)


def _polynomial(t: Doubles, factors: tuple[float, ...]) -> Doubles:
    """``factors[0] + t * (factors[1] + t * ...)``."""
    *others, last = factors
    return reduce(lambda sum, factor: factor + t * sum, reversed(others), np.full_like(t, last))


def exp(x: Doubles) -> Doubles:
    size, sign = np.abs(x), np.where(np.signbit(x), -1, 1)
    ix = _high(x) & 0x7FFFFFFF
    k = np.where(ix < 0x3FF0A2B2, sign, np.trunc(_INV_LN2 * x + 0.5 * sign).astype(np.int64))
    k = np.where(ix > 0x3FD62E42, k, 0)
    hi, lo = x - k * _LN2_HI, k * _LN2_LO
    r = np.where(k == 0, x, hi - lo)
    t = r * r
    c = r - t * _polynomial(t, _P)
    near = 1.0 - ((r * c) / (c - 2.0) - r)
    y = 1.0 - ((lo - (r * c) / (2.0 - c)) - hi)
    y = np.where(k >= -1021, _scaled(y, k), _scaled(y, k + 1000) * 2.0**-1000)
    y = np.where(k == 0, np.where(ix < 0x3E300000, 1.0 + x, near), y)
    y = np.where(x > _EXP_MAX, np.inf, np.where(x < _EXP_MIN, 0.0, y))
    return np.where(np.isnan(size), np.nan, y)


def log(x: Doubles) -> Doubles:
    small = x < 2.0**-1022
    y = np.where(small, x * _TWO54, x)
    hx = _high(y)
    k = (hx >> 20) - 1023 - np.where(small, 54, 0)
    hx = hx & 0xFFFFF
    i = (hx + 0x95F64) & 0x100000
    f = _with_high(y, hx | (i ^ 0x3FF00000)) - 1.0
    k = k + (i >> 20)
    result = _log_of(f, hx, k)
    result = np.where(x == 0, -np.inf, np.where(x < 0, np.nan, result))
    return np.where(np.isnan(x) | (x == np.inf), x, result)


def _log_of(f: Doubles, hx: Longs, k: Longs) -> Doubles:
    """The logarithm of ``2**k * (1 + f)``."""
    dk = k.astype(np.float64)
    r = f * f * (0.5 - 0.33333333333333333 * f)
    tiny = np.where(k == 0, f - r, dk * _LN2_HI - ((r - dk * _LN2_LO) - f))
    tiny = np.where(f == 0, np.where(k == 0, 0.0, dk * _LN2_HI + dk * _LN2_LO), tiny)
    s = f / (2.0 + f)
    z = s * s
    w = z * z
    t1 = w * (_LG[1] + w * (_LG[3] + w * _LG[5]))
    t2 = z * (_LG[0] + w * (_LG[2] + w * (_LG[4] + w * _LG[6])))
    r = t2 + t1
    half = 0.5 * f * f
    one = np.where(k == 0, f - (half - s * (half + r)), dk * _LN2_HI - ((half - (s * (half + r) + dk * _LN2_LO)) - f))
    other = np.where(k == 0, f - s * (f - r), dk * _LN2_HI - ((s * (f - r) - dk * _LN2_LO) - f))
    plain = np.where(((hx - 0x6147A) | (0x6B851 - hx)) > 0, one, other)
    return np.where((0xFFFFF & (2 + hx)) < 3, tiny, plain)


def log10(x: Doubles) -> Doubles:
    small = x < 2.0**-1022
    y = np.where(small, x * _TWO54, x)
    hx = _high(y)
    k = (hx >> 20) - 1023 - np.where(small, 54, 0)
    i = np.where(k < 0, 1, 0)
    n = (k + i).astype(np.float64)
    z = n * 3.69423907715893078616e-13 + 4.34294481903251816668e-01 * log(
        _with_high(y, (hx & 0xFFFFF) | ((0x3FF - i) << 20))
    )
    result = z + n * 3.01029995663611771306e-01
    result = np.where(x == 0, -np.inf, np.where(x < 0, np.nan, result))
    return np.where(np.isnan(x) | (x == np.inf), x, result)


def log1p(x: Doubles) -> Doubles:
    hx = _high(x)
    ax = hx & 0x7FFFFFFF
    plain = (hx < 0x3FDA827A) & ((hx > 0) | (ax <= 0x3FD2BEC3))
    u = np.where(hx < 0x43400000, 1.0 + x, x)
    hu = _high(u)
    k = (hu >> 20) - 1023
    c = np.where(hx < 0x43400000, np.where(k > 0, 1.0 - (u - x), x - (u - 1.0)), 0.0) / u
    hu = hu & 0xFFFFF
    low = hu < 0x6A09E
    f = np.where(low, _with_high(u, hu | 0x3FF00000), _with_high(u, hu | 0x3FE00000)) - 1.0
    k = np.where(plain, 0, np.where(low, k, k + 1))
    hu = np.where(plain, 1, np.where(low, hu, (0x100000 - hu) >> 2))
    f = np.where(plain, x, f)
    dk = k.astype(np.float64)
    half = 0.5 * f * f
    r = half * (1.0 - 0.66666666666666666 * f)
    tiny = np.where(k == 0, f - r, dk * _LN2_HI - ((r - (dk * _LN2_LO + c)) - f))
    tiny = np.where(f == 0, np.where(k == 0, 0.0, dk * _LN2_HI + (c + dk * _LN2_LO)), tiny)
    s = f / (2.0 + f)
    r = s * s * _polynomial(s * s, _LG)
    result = np.where(
        k == 0, f - (half - s * (half + r)), dk * _LN2_HI - ((half - (s * (half + r) + (dk * _LN2_LO + c))) - f)
    )
    result = np.where(hu == 0, tiny, result)
    result = np.where(ax < 0x3E200000, np.where(ax < 0x3C900000, x, x - x * x * 0.5), result)
    result = np.where(x == -1, -np.inf, np.where(x < -1, np.nan, result))
    return np.where(np.isnan(x) | (x == np.inf), x, result)


_Q = (
    1.0,
    -3.33333333333331316428e-02,
    1.58730158725481460165e-03,
    -7.93650757867487942473e-05,
    4.00821782732936239552e-06,
    -2.01099218183624371326e-07,
)


def expm1(x: Doubles) -> Doubles:
    ix, sign = _high(x) & 0x7FFFFFFF, np.where(np.signbit(x), -1, 1)
    k = np.where(ix < 0x3FF0A2B2, sign, np.trunc(_INV_LN2 * x + 0.5 * sign).astype(np.int64))
    k = np.where(ix > 0x3FD62E42, k, 0)
    hi, lo = x - k * _LN2_HI, k * _LN2_LO
    r = np.where(k == 0, x, hi - lo)
    c = (hi - r) - lo
    half = 0.5 * r
    hxs = r * half
    r1 = _polynomial(hxs, _Q)
    t = 3.0 - r1 * half
    e = hxs * ((r1 - t) / (6.0 - r * t))
    near = r - (r * e - hxs)
    e = (r * (e - c) - c) - hxs
    one = np.where(r < -0.25, -2.0 * (e - (r + 0.5)), 1.0 + 2.0 * (r - e))
    far = 1.0 - (e - r)
    far = np.where(k == 1024, far * 2.0 * 2.0**1023, _scaled(far, k)) - 1.0
    below = _scaled(_of_high(0x3FF00000 - (0x200000 >> np.clip(k, 0, 30))) - (e - r), k)
    above = _scaled(r - (e + _of_high((0x3FF - k) << 20)) + 1.0, k)
    y = np.where((k <= -2) | (k > 56), far, np.where(k < 20, below, above))
    y = np.where(k == 0, near, np.where(k == -1, 0.5 * (r - e) - 0.5, np.where(k == 1, one, y)))
    y = np.where(ix < 0x3C900000, x, y)
    y = np.where(x > _EXP_MAX, np.inf, np.where((ix >= 0x4043687A) & (sign < 0), -1.0, y))
    return np.where(np.isnan(x), np.nan, y)


def cbrt(x: Doubles) -> Doubles:
    size = np.abs(x)
    small = _TWO54 * size
    t = np.where(
        size < 2.0**-1022, _with_high(small, _high(small) // 3 + 696219795), _of_high(_high(size) // 3 + 715094163)
    )
    s = 5.42857142857142815906e-01 + t * t / size * t
    t = t * (3.57142857142857150787e-01 + 1.60714285714285720630e00 / (s + 1.41428571428571436819e00
             + -7.05306122448979611050e-01 / s))  # fmt: skip
    t = _of_high(_high(t) + 1)
    r = size / (t * t)
    t = t + t * ((r - t) / (t + t + r))
    return np.where((x == 0) | ~np.isfinite(x), x, np.copysign(t, x))


_DP_H, _DP_L = 5.84962487220764160156e-01, 1.35003920212974897128e-08
_CP, _CP_H, _CP_L = 9.61796693925975554329e-01, 9.61796700954437255859e-01, -7.02846165095275826516e-09
_IVLN2_H, _IVLN2_L = 1.44269502162933349609e00, 1.92596299112661746887e-08
_LG2, _LG2_H, _LG2_L = 6.93147180559945286227e-01, 6.93147182464599609375e-01, -1.90465429995776804525e-09
_L = (
    5.99999999999994648725e-01,
    4.28571428578550184252e-01,
    3.33333329818377432918e-01,
    2.72728123808534006489e-01,
    2.30660745775561754067e-01,
    2.06975017800338417784e-01,
)


def pow(x: Doubles, y: Doubles) -> Doubles:
    size, ix, huge = np.abs(x), _high(x) & 0x7FFFFFFF, np.abs(y) > 2.0**31
    t1, t2 = (np.where(huge, near, plain) for near, plain in zip(_log2_near_1(size), _log2(size), strict=True))
    y1 = _cut(y)
    p_l, p_h = (y - y1) * t1 + y * t2, y1 * t1
    z = p_l + p_h
    result = _power_of_2(p_h, p_l)
    result = np.where((z > 1024) | ((z == 1024) & (p_l + 8.0085662595372944372e-17 > z - p_h)), np.inf, result)
    result = np.where((z < -1075) | ((z == -1075) & (p_l <= z - p_h)), 0.0, result)
    vast = np.abs(y) > 2.0**64
    result = np.where(huge & (ix < np.where(vast, 0x3FF00000, 0x3FEFFFFF)), np.where(y < 0, np.inf, 0.0), result)
    result = np.where(huge & (ix > np.where(vast, 0x3FEFFFFF, 0x3FF00000)), np.where(y > 0, np.inf, 0.0), result)
    result = np.where((x < 0) & (np.fmod(y, 2.0) != 0), -result, result)
    result = np.where((x < 0) & (np.trunc(y) != y), np.nan, result)
    result = np.where(y == 2, x * x, np.where((y == 0.5) & (x > -np.inf), np.sqrt(x + 0.0), result))
    result = np.where(y == -1, 1.0 / x, np.where(y == 1, x, result))
    ordinary = np.isfinite(x) & np.isfinite(y) & (x != 0) & (y != 0)
    result = np.where(ordinary, result, np.power(x, y))
    result = np.where((size == 1) & np.isinf(y), np.nan, result)
    return np.where(np.isnan(y) | (np.isnan(x) & (y != 0)), np.nan, result)


def _log2(size: Doubles) -> tuple[Doubles, Doubles]:
    """The logarithm to base 2 of positive finite numbers, as a number without lower bits and the rest."""
    small = size < 2.0**-1022
    ax = np.where(small, size * 2.0**53, size)
    ix = _high(ax)
    n = (ix >> 20) - 0x3FF - np.where(small, 53, 0)
    j = ix & 0xFFFFF
    k = np.where((j > 0x3988E) & (j < 0xBB67A), 1, 0)
    up = j >= 0xBB67A
    n = np.where(up, n + 1, n)
    ix = np.where(up, (j | 0x3FF00000) - 0x100000, j | 0x3FF00000)
    ax = _with_high(ax, ix)
    bp = np.where(k == 1, 1.5, 1.0)
    u, v = ax - bp, 1.0 / (ax + bp)
    ss = u * v
    s_h = _cut(ss)
    t_h = _of_high(((ix >> 1) | 0x20000000) + 0x80000 + (k << 18))
    t_l = ax - (t_h - bp)
    s_l = v * ((u - s_h * t_h) - s_h * t_l)
    s2 = ss * ss
    r = s2 * s2 * _polynomial(s2, _L)
    r = r + s_l * (s_h + ss)
    s2 = s_h * s_h
    t_h = _cut(3.0 + s2 + r)
    t_l = r - ((t_h - 3.0) - s2)
    u, v = s_h * t_h, s_l * t_h + t_l * ss
    p_h = _cut(u + v)
    p_l = v - (p_h - u)
    dp_h, dp_l = np.where(k == 1, _DP_H, 0.0), np.where(k == 1, _DP_L, 0.0)
    z_h, z_l = _CP_H * p_h, _CP_L * p_h + p_l * _CP + dp_l
    t = n.astype(np.float64)
    t1 = _cut(((z_h + z_l) + dp_h) + t)
    return t1, z_l - (((t1 - t) - dp_h) - z_h)


def _log2_near_1(size: Doubles) -> tuple[Doubles, Doubles]:
    t = size - 1.0
    w = (t * t) * (0.5 - t * (0.3333333333333333333333 - t * 0.25))
    u, v = _IVLN2_H * t, t * _IVLN2_L - w * _INV_LN2
    t1 = _cut(u + v)
    return t1, v - (t1 - u)


def _power_of_2(p_h: Doubles, p_l: Doubles) -> Doubles:
    """2 to the sum of both, where it is neither too large nor too small."""
    z = p_l + p_h
    j = _high(z)
    i = j & 0x7FFFFFFF
    k = (i >> 20) - 0x3FF
    n = j + (0x100000 >> np.clip(k + 1, 0, 30))
    k = ((n & 0x7FFFFFFF) >> 20) - 0x3FF
    whole = _of_high(n & ~(0xFFFFF >> np.clip(k, 0, 30)))
    n = ((n & 0xFFFFF) | 0x100000) >> np.clip(20 - k, 0, 30)
    n = np.where(j < 0, -n, n)
    far = i > 0x3FE00000
    n, p_h = np.where(far, n, 0), np.where(far, p_h - whole, p_h)
    t = _cut(p_l + p_h)
    u, v = t * _LG2_H, (p_l - (t - p_h)) * _LG2 + t * _LG2_L
    z = u + v
    w = v - (z - u)
    t = z * z
    t1 = z - t * _polynomial(t, _P)
    z = 1.0 - ((z * t1) / (t1 - 2.0) - (w + z * w) - z)
    return np.where((_high(z) + (n << 20)) >> 20 <= 0, np.ldexp(z, n), _scaled(z, n))


_PIO2_HI, _PIO2_LO = 1.57079632679489655800e00, 6.12323399573676603587e-17
_PI, _PI_LO = 3.1415926535897931160e00, 1.2246467991473531772e-16
_PIO4_HI = 7.85398163397448278999e-01
_PS = (
    1.66666666666666657415e-01,
    -3.25565818622400915405e-01,
    2.01212532134862925881e-01,
    -4.00555345006794114027e-02,
    7.91534994289814532176e-04,
    3.47933107596021167570e-05,
)
_QS = (
    1.0,
    -2.40339491173441421878e00,
    2.02094576023350569471e00,
    -6.88283971605453293030e-01,
    7.70381505559019352791e-02,
)


def _arc(t: Doubles) -> Doubles:
    """The quotient by which asin and acos differ from their argument."""
    return t * _polynomial(t, _PS) / _polynomial(t, _QS)


def asin(x: Doubles) -> Doubles:
    size, ix = np.abs(x), _high(x) & 0x7FFFFFFF
    near = np.where(ix < 0x3E400000, x, x + x * _arc(x * x))
    t = (1.0 - size) * 0.5
    root, r = np.sqrt(t), _arc(t)
    edge = _PIO2_HI - (2.0 * (root + root * r) - _PIO2_LO)
    w = _cut(root)
    c = (t - w * w) / (root + w)
    p = 2.0 * root * r - (_PIO2_LO - 2.0 * c)
    far = np.where(ix >= 0x3FEF3333, edge, _PIO4_HI - (p - (_PIO4_HI - 2.0 * w)))
    result = np.where(ix < 0x3FE00000, near, np.copysign(far, x))
    result = np.where(size == 1, x * _PIO2_HI + x * _PIO2_LO, result)
    return np.where(size <= 1, result, np.nan)


def acos(x: Doubles) -> Doubles:
    ix = _high(x) & 0x7FFFFFFF
    near = _PIO2_HI - (x - (_PIO2_LO - x * _arc(x * x)))
    near = np.where(ix <= 0x3C600000, _PIO2_HI + _PIO2_LO, near)
    z = np.where(x < 0, (1.0 + x) * 0.5, (1.0 - x) * 0.5)
    root, r = np.sqrt(z), _arc(z)
    below = _PI - 2.0 * (root + (r * root - _PIO2_LO))
    df = _cut(root)
    c = (z - df * df) / (root + df)
    above = 2.0 * (df + (r * root + c))
    result = np.where(ix < 0x3FE00000, near, np.where(x < 0, below, above))
    result = np.where(x == 1, 0.0, np.where(x == -1, _PI + 2.0 * _PIO2_LO, result))
    return np.where(np.abs(x) <= 1, result, np.nan)


_AT = (
    3.33333333333329318027e-01,
    -1.99999999998764832476e-01,
    1.42857142725034663711e-01,
    -1.11111104054623557880e-01,
    9.09088713343650656196e-02,
    -7.69187620504482999495e-02,
    6.66107313738753120669e-02,
    -5.83357013379057348645e-02,
    4.97687799461593236017e-02,
    -3.65315727442169155270e-02,
    1.62858201153657823623e-02,
)
_AT_HI = np.array([4.63647609000806093515e-01, _PIO4_HI, 9.82793723247329054082e-01, _PIO2_HI])
_AT_LO = np.array([2.26987774529616870924e-17, 3.06161699786838301793e-17, 1.39033110312309984516e-17, _PIO2_LO])


def atan(x: Doubles) -> Doubles:
    size, ix = np.abs(x), _high(x) & 0x7FFFFFFF
    place = (ix >= 0x3FE60000).astype(np.int64) + (ix >= 0x3FF30000) + (ix >= 0x40038000)
    reduced = np.choose(
        place, [(2.0 * size - 1.0) / (2.0 + size), (size - 1.0) / (size + 1.0), (size - 1.5) / (1.0 + 1.5 * size),
                -1.0 / size]
    )  # fmt: skip
    near = ix < 0x3FDC0000
    r = np.where(near, x, reduced)
    z = r * r
    w = z * z
    s1, s2 = z * _polynomial(w, _AT[::2]), w * _polynomial(w, _AT[1::2])
    far = _AT_HI[place] - ((r * (s1 + s2) - _AT_LO[place]) - r)
    far = np.where(ix >= 0x44100000, _AT_HI[3] + _AT_LO[3], far)
    result = np.where(near, np.where(ix < 0x3E200000, x, r - r * (s1 + s2)), np.copysign(far, x))
    return np.where(np.isnan(x), np.nan, result)


def atan2(y: Doubles, x: Doubles) -> Doubles:
    k = ((_high(y) & 0x7FFFFFFF) - (_high(x) & 0x7FFFFFFF)) >> 20
    z = np.where(k > 60, _PIO2_HI + 0.5 * _PI_LO, np.where((x < 0) & (k < -60), 0.0, atan(np.abs(y / x))))
    left = np.where(np.signbit(y), (z - _PI_LO) - _PI, _PI - (z - _PI_LO))
    result = np.where(np.signbit(x), left, np.copysign(z, y))
    result = np.where(x == 1, atan(y), result)
    ordinary = np.isfinite(x) & np.isfinite(y) & (x != 0) & (y != 0)
    return np.where(ordinary, result, np.arctan2(y, x))


_EXP_PLAIN_HIGH, _SINH_MAX = 0x40862E42, 710.4758600739439


def sinh(x: Doubles) -> Doubles:
    size, ix, h = np.abs(x), _high(x) & 0x7FFFFFFF, np.copysign(0.5, x)
    t = expm1(size)
    near = np.where(ix < 0x3FF00000, h * (2.0 * t - t * t / (t + 1.0)), h * (t + t / (t + 1.0)))
    w = exp(0.5 * size)
    far = np.where(ix < _EXP_PLAIN_HIGH, h * exp(size), h * w * w)
    result = np.where(ix < 0x40360000, np.where(ix < 0x3E300000, x, near), far)
    return np.where(np.isnan(x), np.nan, np.where(size > _SINH_MAX, np.copysign(np.inf, x), result))


def cosh(x: Doubles) -> Doubles:
    size, ix = np.abs(x), _high(x) & 0x7FFFFFFF
    t = expm1(size)
    one = 1.0 + t
    near = np.where(ix < 0x3C800000, one, 1.0 + (t * t) / (one + one))
    plain, w = exp(size), exp(0.5 * size)
    far = np.where(ix < _EXP_PLAIN_HIGH, 0.5 * plain, 0.5 * w * w)
    result = np.where(ix < 0x3FD62E43, near, np.where(ix < 0x40360000, 0.5 * plain + 0.5 / plain, far))
    return np.where(np.isnan(x), np.nan, np.where(size > _SINH_MAX, np.inf, result))


def tanh(x: Doubles) -> Doubles:
    size, ix = np.abs(x), _high(x) & 0x7FFFFFFF
    t = expm1(-2.0 * size)
    z = np.where(ix >= 0x3FF00000, 1.0 - 2.0 / (expm1(2.0 * size) + 2.0), -t / (t + 2.0))
    z = np.where(ix < 0x40360000, z, 1.0)
    return np.where(np.isnan(x), np.nan, np.where(ix < 0x3C800000, x * (1.0 + x), np.copysign(z, x)))


def asinh(x: Doubles) -> Doubles:
    size = np.abs(x)
    square = x * x
    near = log1p(size + square / (1.0 + np.sqrt(1.0 + square)))
    far = log(2.0 * size + 1.0 / (np.sqrt(square + 1.0) + size))
    result = np.where(size > 2.0, far, near)
    result = np.where(size > 2.0**28, log(size) + _LN2, result)
    return np.copysign(np.where((size < 2.0**-28) | ~np.isfinite(x), size, result), x)


def acosh(x: Doubles) -> Doubles:
    t = x - 1.0
    near = log1p(t + np.sqrt(2.0 * t + t * t))
    far = log(2.0 * x - 1.0 / (x + np.sqrt(x * x - 1.0)))
    result = np.where(x > 2.0, far, near)
    result = np.where(x >= 2.0**28, log(x) + _LN2, result)
    return np.where(x == 1, 0.0, np.where(x >= 1, result, np.nan))


def hypot(x: Doubles, y: Doubles) -> Doubles:
    a, b = np.maximum(np.abs(x), np.abs(y)), np.minimum(np.abs(x), np.abs(y))
    far = (_high(a) - _high(b)) > 0x3C00000
    total = a + b
    scale = np.where(a > 2.0**500, 2.0**-600, np.where(b < 2.0**-500, 2.0**600, 1.0))
    a, b = a * scale, b * scale
    w = a - b
    t1 = _cut(a)
    t2 = a - t1
    apart = np.sqrt(t1 * t1 - (b * (-b) - t2 * (a + t1)))
    y1 = _cut(b)
    y2 = b - y1
    t1 = _of_high(_high(a) + 0x100000)
    t2 = (a + a) - t1
    close = np.sqrt(t1 * y1 - (w * (-w) - (t1 * y2 + t2 * b)))
    result = np.where(far | (y1 == 0) & (b == 0), total, np.where(w > b, apart, close) / scale)
    result = np.where(np.isnan(x) | np.isnan(y), np.nan, result)
    return np.where(np.isinf(x) | np.isinf(y), np.inf, result)


OF_ONE: Mapping[str, Callable[[Doubles], Doubles]] = {
    "exp": exp,
    "expm1": expm1,
    "log": log,
    "log10": log10,
    "log1p": log1p,
    "cbrt": cbrt,
    "asin": asin,
    "acos": acos,
    "atan": atan,
    "sinh": sinh,
    "cosh": cosh,
    "tanh": tanh,
    "asinh": asinh,
    "acosh": acosh,
}
OF_TWO: Mapping[str, Callable[[Doubles, Doubles], Doubles]] = {"pow": pow, "atan2": atan2, "hypot": hypot}
