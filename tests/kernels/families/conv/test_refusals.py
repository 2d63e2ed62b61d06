"""Convolutions of what does not fit are refused, on every device."""

import numpy as np
import pytest

from numbanet_kernels.layouts.windows import Blocks, Window
from tests.kernels.families.conv.cases import of


def called(
    suffix, put, shape=(2, 5, 4, 3), w=(4, 3, 3, 3), window=None, groups=1, bias=None, rows=None, kept=None, height=6, width=9
):
    """conv2d with ones of these shapes; here there are 12 rows of 27 columns."""
    options = {
        "rows": None if rows is None else put(np.array(rows, np.int32)),
        "blocks": None if kept is None else Blocks(put(np.array(kept, np.int32).reshape(len(kept), -1)), height, width),
    }
    x, w, bias = (None if shape is None else put(np.ones(shape)) for shape in (shape, w, bias))
    return of(suffix)[0](x, w, window or Window((3, 3)), groups, bias, **options)


@pytest.mark.parametrize(
    "given, message",
    [
        ({"shape": (5, 4, 3)}, r"x \(5, 4, 3\)"),
        ({"w": (4, 2, 3, 3)}, r"x \(2, 5, 4, 3\) does not match w \(4, 2, 3, 3\)"),
        ({"w": (4, 3, 3)}, r"w \(4, 3, 3\)"),
        ({"window": Window((3, 2))}, "does not match w .*Window"),
        ({"groups": 2}, "with 2 groups"),
        ({"groups": 0}, "with 0 groups"),
        ({"groups": -1}, "with -1 groups"),
        ({"w": (4, 1, 3, 3), "groups": 3}, "with 3 groups"),
        ({"bias": (3,)}, r"bias \(3,\)"),
        ({"window": Window((3, 3), (0, 1))}, "sizes from 1"),
        ({"window": Window((3, 3), dilation=(1, 0))}, "sizes from 1"),
        ({"window": Window((3, 3), padding=(0, -1))}, "paddings from 0"),
        ({"shape": (2, 2, 4, 3)}, r"larger than the images \(2, 4\)"),
        ({"window": Window((3, 3), dilation=(1, 2))}, r"larger than the images \(5, 4\)"),
        ({"rows": range(13)}, "13 rows are listed of 12$"),
        ({"rows": [1], "kept": [[0], [0]]}, "12 and blocks as well"),
        ({"kept": [[0], [0], [0]]}, r"blocks \(3, 1\) of \(6, 9\) do not divide a matrix \(12, 27\)"),
        ({"kept": [[0, 1, 2, 3]] * 2}, "do not divide"),
        ({"kept": [[0]] * 2, "height": 0}, "do not divide"),
        ({"kept": [[0]] * 2, "width": 0}, "do not divide"),
        ({"kept": [[0]] * 2, "shape": (2, 5, 4, 6), "w": (4, 3, 3, 3), "groups": 2}, "of several groups"),
    ],
)
def test_what_does_not_fit_is_refused(suffix, put, given, message):
    with pytest.raises(ValueError, match=f"^conv2d .*{message}"):
        called(suffix, put, **given)


@pytest.mark.parametrize(
    "given",
    [
        {"rows": [3, 3]},
        {"rows": [4, 2]},
        {"rows": [-1, 2]},
        {"rows": [5, 12]},
        {"kept": [[0, 0], [0, 1]]},
        {"kept": [[0, 1], [2, 1]]},
        {"kept": [[0, 3], [0, 1]]},
        {"kept": [[-1], [0]]},
    ],
    ids=str,
)
def test_lists_that_are_not_increasing_are_refused(given):
    """On the CPU, which reads lists on its way; those of a device are trusted."""
    with pytest.raises(ValueError, match="conv2d .*kept indices must increase and be from 0 to (11|2)$"):
        called("cpu", lambda host: host if host.dtype == np.int32 else np.float32(host), **given)


@pytest.mark.parametrize(
    "name, shape", [("dy", (2, 3, 2, 5)), ("dy", (2, 2, 3, 4)), ("where", (2, 3, 2, 3)), ("x", (1, 5, 4, 3))]
)
def test_gradients_that_do_not_fit_are_refused(suffix, put, name, shape):
    shapes = {"dy": (2, 3, 2, 4), "x": (2, 5, 4, 3), "w": (4, 3, 3, 3), "where": (2, 3, 2, 4), name: shape}
    with pytest.raises(ValueError, match=r"^conv2d_grad .*must be|^conv2d_grad .*does not match"):
        of(suffix)[1](**{key: put(np.ones(value)) for key, value in shapes.items()}, window=Window((3, 3)))
