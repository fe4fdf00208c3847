"""
A fingerprint of a set of offsets that a database adds up in one scan, without sorting and without memory.

Counting distinct offsets makes a database sort them, which takes ten times as long as reading them. A sum is
cheap, and sums prove enough: for each offset the database adds ``(offset + shift) ** 4`` modulo a prime,
where ``shift`` is random and chosen for each audit. For the range that is expected the same sum has a closed
form.

Rows whose number and fingerprint are those of the range hold each of its offsets exactly once, unless the
lost and the doubled offsets agree in number and in the sums of their first, second, third and fourth powers
(that takes at least five lost and five doubled offsets in a pattern that number theory calls a
Prouhet-Tarry-Escott solution), or the shift, which the rows cannot know, is one of four in a thousand
million.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from airflow_kafka_offsets.model.offsets import OffsetRange

PRIME = 2**31 - 1
"""The square of a residue fits into a signed 64-bit integer."""


_SMALL = 2**30


@dataclass(frozen=True)
class Fingerprint:
    """
    The function that is added up.

    :param shift: a number that is random modulo :data:`PRIME`.
    :param small: whether the square of each shifted offset fits into a signed 64-bit integer as it is.
    """

    shift: int
    small: bool = False

    @classmethod
    def random(cls, offsets: OffsetRange) -> Fingerprint:
        """
        Return a fingerprint with a shift that nothing knows before.

        :param offsets: the lowest and the highest offset that it is for.
        """
        shift = secrets.randbelow(_SMALL) - offsets.start
        return cls(shift, small=offsets.size <= _SMALL)

    def of(self, offset: int) -> int:
        """Return the summand of one offset, as a database computes it."""
        residue = (offset + self.shift) % PRIME
        square = residue * residue % PRIME
        return square * square % PRIME

    def expected(self, offsets: OffsetRange) -> int:
        """Return the sum for each offset of a range once, modulo :data:`PRIME`."""
        start, end = (bound + self.shift for bound in offsets)
        return (_fourth_powers(end) - _fourth_powers(start)) % PRIME

    def fits(self, offsets: OffsetRange, rows: int, total: int) -> bool:
        """Whether rows of a range hold each of its offsets exactly once."""
        return rows == offsets.size and total % PRIME == self.expected(offsets)


def _fourth_powers(end: int) -> int:
    """Return the sum of the fourth powers of the numbers from 0 to below ``end``."""
    return (end - 1) * end * (2 * end - 1) * (3 * end * end - 3 * end - 1) // 30
