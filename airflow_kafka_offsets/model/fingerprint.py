"""
A fingerprint of a set of offsets that a database computes in one scan, without sorting.

Counting distinct offsets makes a database sort them, which takes ten times as long as reading them. A sum is
cheap and sufficient: for each offset the database adds ``(offset + shift) ** 4`` modulo a prime, with a
random ``shift`` for each audit. For the expected range, the same sum has a closed form.

If the number of rows and the fingerprint match those of the range, each offset has exactly one row, with two
exceptions. First, the lost and the doubled offsets agree in number and in the sums of their first, second,
third and fourth powers. This takes at least five lost and five doubled offsets that form a
Prouhet-Tarry-Escott solution. Second, the random shift hides the difference: at most four of the ``2**30``
possible shifts do.
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
    The function whose values are summed.

    :param shift: a random number modulo :data:`PRIME`.
    :param small: whether each square of a shifted offset fits into a signed 64-bit integer without a modulo.
    """

    shift: int
    small: bool = False

    @classmethod
    def random(cls, offsets: OffsetRange) -> Fingerprint:
        """Return a fingerprint with an unpredictable shift, for offsets between the given bounds."""
        shift = secrets.randbelow(_SMALL) - offsets.start
        return cls(shift, small=offsets.size <= _SMALL)

    def expected(self, offsets: OffsetRange) -> int:
        """Return the sum over a range with each offset once, modulo :data:`PRIME`."""
        start, end = (bound + self.shift for bound in offsets)
        return (_fourth_powers(end) - _fourth_powers(start)) % PRIME

    def matches(self, offsets: OffsetRange, rows: int, total: int) -> bool:
        """Whether the rows contain each offset of a range exactly once."""
        return rows == offsets.size and total % PRIME == self.expected(offsets)


def _fourth_powers(end: int) -> int:
    """Return the sum of the fourth powers of the numbers from 0 to below ``end``."""
    return (end - 1) * end * (2 * end - 1) * (3 * end * end - 3 * end - 1) // 30
