"""Winograd's minimal filtering (Lavin and Gray 2016) for windows of 3 x 3 with stride 1: the matrices, for every device.

A tile of m x m outputs, m = 2 or 4, reads n x n pixels, n = m + 2. With d the pixels and g the taps of one channel, the outputs
Y and, from their gradient dY, the gradients of the taps and of the pixels are

    Y  = A^T [(G g G^T) * (B^T d B)] A        (* is elementwise; sums over channels come before the outer transform)
    dg = G^T [(A dY A^T) * (B^T d B)] G       (sums over tiles come before the outer transform)
    dd = B [(G g G^T) * (A dY A^T)] B^T       (sums over filters come before the outer transform; overlapping tiles are added)

The sums are n² matrix products, one for each element of a tile of n x n pixels. They need n² / (9 m²) of the multiplications
of the direct form: 4/9 for m = 2, 1/4 for m = 4. The matrices interpolate polynomials, for m = 2 at the points 0, 1, -1 and
infinity, for m = 4 at 0, a, -a, b, -b and infinity. The paper takes a = 1, b = 2. Here a = 5/8, b = 3/2, as in oneDNN: powers
of these points are closer to 1, and so errors are less than half as large. With 512 channels, and relative to the largest
element, they are at most 1e-6 for m = 2, and 4e-6 for m = 4.
"""

from __future__ import annotations

a, b = 5 / 8, 3 / 2
BT = {
    2: [[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]],
    4: [
        [a**2 * b**2, 0, -(a**2) - b**2, 0, 1, 0],
        [0, -a * b**2, -(b**2), a, 1, 0],
        [0, a * b**2, -(b**2), -a, 1, 0],
        [0, -b * a**2, -(a**2), b, 1, 0],
        [0, b * a**2, -(a**2), -b, 1, 0],
        [0, a**2 * b**2, 0, -(a**2) - b**2, 0, 1],
    ],
}
p, q = 1 / (2 * a**2 * (a**2 - b**2)), 1 / (2 * b**2 * (b**2 - a**2))
G = {
    2: [[1, 0, 0], [1 / 2, 1 / 2, 1 / 2], [1 / 2, -1 / 2, 1 / 2], [0, 0, 1]],
    4: [
        [1 / (a**2 * b**2), 0, 0],
        [p, p * a, p * a**2],
        [p, -p * a, p * a**2],
        [q, q * b, q * b**2],
        [q, -q * b, q * b**2],
        [0, 0, 1],
    ],
}
AT = {
    2: [[1, 1, 1, 0], [0, 1, -1, -1]],
    4: [[1, 1, 1, 1, 1, 0], [0, a, -a, b, -b, 0], [0, a**2, a**2, b**2, b**2, 0], [0, a**3, -(a**3), b**3, -(b**3), 1]],
}


def _turned(matrices):
    return {m: [list(row) for row in zip(*matrix)] for m, matrix in matrices.items()}


A, B, GT = _turned(AT), _turned(BT), _turned(G)


def _row(row, values):
    """The sum of a row's coefficients times values; zeros are left out."""
    total = None
    for coefficient, value in sorted(((c, v) for c, v in zip(row, values) if c), key=lambda term: term[0] != 1):
        if total is None:
            total = value if coefficient == 1 else value * coefficient
        elif abs(coefficient) == 1:
            total = total + value if coefficient == 1 else total - value
        else:
            total = value * coefficient + total
    return total


def _alike(row, other):
    """True if two rows differ in signs alone."""
    return row != other and [abs(c) for c in row] == [abs(c) for c in other]


def _times(matrix, values):
    """matrix @ values with fewer multiplications. If two adjacent columns differ in signs alone, they multiply the sum and the
    difference of their values. If the first two rows do, they are a + b and a - b: a is the sum over the coefficients that
    are equal in both, b that over the others.
    """
    columns, terms, found = [list(column) for column in zip(*matrix)], list(values), []
    for j in range(len(columns) - 1):
        if _alike(*columns[j : j + 2]):
            pairs = list(zip(*columns[j : j + 2]))
            columns[j : j + 2] = [c if c == d else 0 for c, d in pairs], [c if c != d else 0 for c, d in pairs]
            terms[j : j + 2] = terms[j] + terms[j + 1], terms[j] - terms[j + 1]
    rows = [list(row) for row in zip(*columns)]
    while rows:
        if len(rows) > 1 and _alike(*rows[:2]):
            row, other = rows[:2]
            equal = _row([c if c == d else 0 for c, d in zip(row, other)], terms)
            opposite = _row([c if c != d else 0 for c, d in zip(row, other)], terms)
            found += [equal + opposite, equal - opposite]
            del rows[:2]
        else:
            found.append(_row(rows.pop(0), terms))
    return found


def sandwich(matrix, element):
    """M X M^T as rows of values; element(r, s) is a value of X, a vector or a number with Python's operators."""
    size = len(matrix[0])
    columns = [_times(matrix, [element(r, s) for r in range(size)]) for s in range(size)]
    return [_times(matrix, [column[i] for column in columns]) for i in range(len(matrix))]
