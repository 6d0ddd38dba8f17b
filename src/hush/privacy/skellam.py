"""Skellam noise is as private as Gaussian noise of nearly its own strength, whatever is done with it: the proof, and the strength.

Let X be Skellam noise of variance v on the integers, p its probabilities, F its distribution function, Phi the normal one, and

    m = 2 Phi^-1((1 + p(0)) / 2) = (1 + 1/(6v) + ..) / sqrt(v).

**Theorem.** For every vector j of integers, independent X on every entry cover a shift by j as well as N(0, I) covers a shift by
m |j|_2: some random map takes N(0, 1) and N(m |j|_2, 1) to the two laws. No smaller m does, already for j = 1.

So Skellam noise has every guarantee of the Gaussian of standard deviation 1/m: in the loss, in Renyi divergences, alone or composed
adaptively, where P and (1 - q) P + q Q are told apart (one map takes both pairs), after any post-processing. The map is of pairs:
where three laws meet, as coins and replacement make them do, another lemma is needed.

*Coins and replacement.* Let P, Q, R be the laws of a sum without a record, with it, and with another in its place, and c >= 1. For
a = (c - 1)(1 - q)/q, ((1 - q) P + q Q) - c ((1 - q) P + q R) = q (Q - a P - c R), whose positive part is at most that of
q (s Q - a P) and that of q ((1 - s) Q - c R) together, for every s in [0, 1]: a sum of losses of pairs, which are at most the
Gaussians'. For Gaussians Q, P, R in this order on a line, Q - a P - c R is positive up to some place; with s the a P / Q there, the
other two are positive up to the very same place, and the bound is attained. So Skellam noise has the guarantee of those Gaussians.

*Reduction* (Dong, Roth, Su 2019). X is log-concave, so the best tests of X against X + 1 are thresholds: their errors are the
points (1 - F(k), F(k - 1)), and chords between these. The Gaussian's curve is convex, so it lies below if it does at the points,
which is d_k := z_k - z_(k-1) <= m with z_k = Phi^-1(F(k)). A shift by j is j shifts by one, and independent entries are one vector:
Gaussian curves add up to m |j_i| on entry i, and by Pythagoras to m |j|_2. A curve that lies below is a map (Blackwell 1953).

*The largest step is d_0 = m.* By symmetry d_-k = d_k; we show d_0 >= d_1 >= .. If not, take the first k >= 0 with d_(k+1) > d_k;
then d_(k-1) >= d_k, too. Let b = d_k, and q(j) the mass of N(0, 1) on the j-th of equal cells of width b, the k-th of which is
[z_(k-1), z_k]; its centre is not negative. Compare r = log p - log q: r(k) = 0, r(k + 1) > 0, and r(k - 1) >= 0, so the second
difference of r is positive at k. That of log p does not fall from 0 on (A), and that of log q does not rise from k on (B): so r is
convex from k on, and positive from k + 1 on. But p and q have the same mass beyond k, 1 - F(k): a contradiction.

(A) Let L_j = log(I_j(v) / I_(j-1)(v)): the second difference of log p at j is L_(j+1) - L_j, and we show that
M_j = L_(j+1) - 2 L_j + L_(j-1) is positive for j >= 1. Bessel's recurrences give dL_j/dv = -2 sinh(L_j) - (2j - 1)/v. For v -> 0,
L_j is log(v / 2j), j >= 1, and L_0 = -L_1, so M_j is positive there. At its first zero, the three are L_j - h, L_j, L_j + h,
so that dM_j/dv = -4 sinh(L_j) (cosh(h) - 1). This is not negative as I_j < I_(j-1), and not zero, since
I_(j-1) - I_(j+1) = (2j/v) I_j forbids three equal ratios in a row: M_j rises where it would have to fall.

(B) Let t be a cell's centre. Then (log q)''' is the third central moment of N(t, 1) given that it is in [-b/2, b/2]. At t >= 0 its
mean u lies in [0, t]. The density at u + y is exp(2y (t - u)) >= 1 times that at u - y while both lie in the interval, and zero
beyond: the difference changes sign once, from plus to minus; its first moment is zero, so the third is not positive. A second
difference is an average of (log q)'' under a symmetric peak; as (log q)''' is odd, and not positive from 0 on, so is the derivative
of that average.

(A) is all that was used of X besides symmetry, and the discrete Gaussian has it, with equality.
"""

from __future__ import annotations

import math

from scipy import special

from hush.errors import NoGuarantee
from hush.privacy.vocabulary import Noise, SkellamNoise


def step_shift(variance: float) -> float:
    """m, rounded up: by the error of scipy's Bessel function, which is below 1e-14, and then by 1e-12.

    The latter is far more than what floats do to m, and to the variance on its way from a multiplier to shares and back.
    """
    stays = float(special.i0e(variance)) * (1 + 1e-14)  # p(0) = exp(-v) I_0(v)
    if stays >= 1:
        raise NoGuarantee(f"Skellam noise of variance {variance:g} hardly ever moves off zero.", "Raise the noise.")
    return 2 * math.sqrt(2) * float(special.erfinv(stays)) * (1 + 1e-12)


def gaussian_std(noise: Noise, draws: int) -> float:
    """The standard deviation of the Gaussian whose guarantees hold for the sum of some draws; of Skellam a little below its own.

    Draws of Skellam noise add up to Skellam noise, and more of them than are counted on only add noise, which is post-processing.
    """
    std = noise.std * math.sqrt(draws)
    return noise.grid / step_shift((std / noise.grid) ** 2) if isinstance(noise, SkellamNoise) else std
