"""Convolutions to be tested: shapes, plans, options, and the comparison with the reference."""

import itertools

import numpy as np

from numbanet_kernels.families import conv
from numbanet_kernels.layouts.windows import Blocks, Positions, Window

# images, filters, window, groups; FEW run on every device
FEW = [
    ((2, 5, 4, 3), 5, Window((3, 3), (1, 1), (1, 1)), 1),
    ((1, 7, 6, 4), 6, Window((3, 2), (2, 1), (1, 0), (2, 2)), 2),
    ((3, 4, 3, 5), 3, Window((1, 1)), 1),
    ((0, 4, 4, 3), 2, Window((2, 2)), 1),
]
MANY = [
    ((2, 9, 8, 1), 6, Window((5, 5), (1, 1), (2, 2)), 1),
    ((3, 11, 10, 3), 17, Window((3, 3), (2, 2), (1, 1)), 1),
    ((2, 8, 9, 16), 33, Window((1, 1), (2, 3)), 1),
    ((2, 7, 7, 3), 4, Window((7, 7), (1, 1), (3, 3)), 1),
    ((1, 7, 7, 3), 4, Window((7, 7)), 1),
    ((2, 6, 9, 4), 5, Window((1, 4)), 1),
    ((2, 9, 6, 4), 5, Window((4, 1), (3, 1)), 1),
    ((2, 9, 9, 3), 4, Window((3, 3), (1, 1), (2, 0), (3, 2)), 1),
    ((1, 2, 2, 3), 3, Window((2, 2), (1, 1), (3, 2)), 1),
    ((2, 6, 5, 6), 6, Window((3, 3), (1, 1), (1, 1)), 6),
    ((2, 6, 5, 6), 9, Window((3, 2), (2, 1), (0, 1)), 3),
    ((2, 5, 5, 4), 40, Window((1, 1)), 2),
    ((37, 6, 5, 3), 20, Window((3, 3), (1, 1), (1, 1)), 1),
    ((41, 4, 4, 4), 18, Window((2, 2), (2, 2)), 2),
    ((0, 3, 3, 2), 2, Window((3, 3)), 2),
    ((2, 4, 3, 0), 3, Window((2, 2)), 1),
    ((2, 4, 3, 2), 0, Window((2, 2)), 1),
    ((1, 1, 1, 1), 1, Window((1, 1)), 1),
    ((5, 40, 7, 2), 1, Window((3, 3)), 1),
]
JOINED = [
    ((2, 9, 8, 1), 6, Window((5, 5), (1, 1), (2, 2)), 1),
    ((3, 9, 15, 2), 5, Window((3, 3), (2, 2), (1, 1)), 1),
    ((5, 9, 8, 3), 4, Window((3, 4), (1, 2), (2, 1), (2, 1)), 1),
    ((2, 6, 10, 9), 3, Window((2, 3), (1, 1), (1, 0)), 1),
    ((3, 6, 14, 6), 16, Window((5, 5)), 1),
    ((41, 5, 8, 1), 1, Window((1, 3), (1, 1), (0, 1)), 1),
]
# with 32 images or more, dx by spreading or by a convolution, dw here or by SGEMM, and longer sums than one piece
ABREAST = [
    ((35, 9, 8, 1), 6, Window((5, 5), (1, 1), (2, 2)), 1),
    ((49, 13, 12, 3), 17, Window((3, 3), (2, 2), (1, 1)), 1),
    ((32, 8, 9, 16), 33, Window((1, 1)), 1),
    ((40, 7, 9, 3), 4, Window((7, 7), (1, 1), (3, 3)), 1),
    ((37, 9, 9, 3), 9, Window((3, 3), (1, 1), (2, 0), (3, 2)), 1),
    ((33, 6, 6, 2), 5, Window((2, 2), (1, 1), (3, 2)), 1),
    ((36, 11, 9, 2), 35, Window((3, 4), (1, 1), (1, 2)), 1),
    ((32, 4, 8, 5), 3, Window((1, 1)), 1),
    ((34, 13, 20, 2), 5, Window((2, 3), (1, 2), (1, 0), (2, 1)), 1),
    ((32, 6, 6, 30), 3, Window((3, 3), (1, 1), (1, 1)), 1),
]
# tiles of 2 and of 4, cut off at both edges, vectors and panels that are not full, each padding
WINOGRAD = [
    ((130, 2, 2, 64), 40, Window((3, 3), (1, 1), (1, 1)), 1),
    ((9, 9, 8, 33), 70, Window((3, 3), (1, 1), (1, 1)), 1),
    ((55, 5, 7, 50), 27, Window((3, 3)), 1),
    ((17, 6, 11, 17), 48, Window((3, 3), (1, 1), (2, 0)), 1),
    ((75, 3, 3, 40), 32, Window((3, 3), (1, 1), (1, 1)), 1),
]
# on CUDA: blocks of tiles, of filters and of channels that are not full, each padding, odd sizes, one image
WIDE = [
    ((2, 7, 9, 8), 8, Window((3, 3), (1, 1), (1, 1)), 1),
    ((9, 6, 5, 9), 33, Window((3, 3)), 1),
    ((1, 11, 12, 17), 35, Window((3, 3), (1, 1), (2, 2)), 1),
    ((1, 16, 9, 40), 64, Window((3, 3), (1, 1), (2, 0)), 1),
    ((20, 3, 2, 12), 10, Window((3, 3), (1, 1), (1, 1)), 1),
    ((33, 2, 1, 8), 8, Window((3, 3), (1, 1), (2, 2)), 1),
    ((9, 8, 7, 10), 12, Window((3, 3), (1, 1), (0, 1)), 1),
]
MANY += [*JOINED, *ABREAST, *WINOGRAD]


def rows(share):
    return lambda rng, total, *sizes: {"rows": np.flatnonzero(rng.random(total) < share).astype(np.int32)}


def alike(rng, total, places, *sizes):
    """Each 16 images in a row have rows alike."""
    kept = np.repeat(rng.random((-(-total // max(places, 1) // 16), places)) < 0.4, 16, axis=0)
    return {"rows": np.flatnonzero(kept[: total // max(places, 1)]).astype(np.int32)}


def tiled(rng, images, positions, side, share):
    """`Positions` of tiles, each of which is kept with probability `share`."""
    down, across = (-(-n // side) for n in positions)
    kept = rng.random((images, down, across)) < share
    mask = kept.repeat(side, 1).repeat(side, 2)[:, : positions[0], : positions[1]]
    rows, tiles = (np.flatnonzero(array).astype(np.int32) for array in (mask, kept))
    return Positions(rows, tiles=tiles, side=side)


def tiles(side, share=0.4):
    def made(rng, total, places, depth, positions):
        return {"rows": tiled(rng, total // max(places, 1), positions, side, share)}

    return made


def blocks_alike(rng, total, places, depth, *sizes):
    """Blocks of parts of an image, as of every 16 images in a row; the last column is narrower."""
    images, high = total // max(places, 1), max(d for d in range(1, max(places, 1) + 1) if places % d == 0 and d <= 10)
    wide = 4 if depth % 4 else 5
    order = rng.random((-(-images // 16), places // high, -(-depth // wide))).argsort(2)
    kept = np.repeat(np.sort(order[..., : round(0.4 * order.shape[2])], 2), 16, axis=0)[:images]
    kept = kept.reshape(images * (places // high), kept.shape[2]).astype(np.int32)
    return {"blocks": Blocks(kept, high, wide, together=16)}


def blocks(share, straddling=False):
    """Blocks as high as an image; or of 7 rows, which ends of images cut, the last column narrower than the others."""

    def made(rng, total, places, depth, *sizes):
        height, width = places, max(depth // 3, 1)
        if straddling:
            height, width = 7, 4 if depth % 4 else 5
        order = rng.random((-(-total // height), -(-depth // width))).argsort(1)
        return {"blocks": Blocks(np.sort(order[:, : round(share * order.shape[1])], 1).astype(np.int32), height, width)}

    return made


PLANS = {
    "all": lambda *sizes: {},
    "rows": rows(0.4),
    "no rows": rows(0),
    "all rows": rows(1),
    "rows alike": alike,
    "tiles of 2": tiles(2),
    "tiles of 4": tiles(4),
    "blocks": blocks(0.5),
    "no blocks": blocks(0),
    "all blocks": blocks(1),
    "blocks across images": blocks(0.5, True),
    "blocks alike": blocks_alike,
}
OPTIONS = {
    "plain": {},
    "relu": {"relu": True, "wants_dx": False},
    "bias": {"bias": True, "where": True},
    "everything": {"bias": True, "relu": True, "where": True, "scale": 1.75},
}


def fits(case, plan):
    return case[3] == 1 or "blocks" not in plan  # blocks are for convolutions without groups


def combined(cases, *turns):
    """Each case with each plan and as many of the options as there are turns: all of them in turns 0 to 3."""
    options = list(OPTIONS)
    return [
        (case, plan, options[(c + p + turn) % len(options)])
        for turn in turns
        for (c, case), (p, plan) in itertools.product(enumerate(cases), enumerate(PLANS))
        if fits(case, plan)
    ]


# of few cases, each with each plan, and each plan with all options
EACH = list({(plan, option): (case, plan, option) for case, plan, option in reversed(combined(FEW, 0, 1, 2, 3))}.values())


def close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * max(1, np.abs(expected).max(initial=0)))


def operands(rng, case, plan="all"):
    """x, w, bias, dy, where, and what the plan keeps."""
    (n, height, width, channels), filters, window, groups = case
    kernel, positions = window.kernel, window.positions(height, width)
    shapes = (case[0], (filters, channels // groups, *kernel), (filters,), *[(n, *positions, filters)] * 2)
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    np.maximum(arrays[-1], 0, out=arrays[-1])  # what a ReLU leaves
    places = int(np.prod(positions))
    return *arrays, PLANS[plan](rng, n * places, places, channels // groups * int(np.prod(kernel)), positions)


def uploaded(thinned, put):
    def moved(kept):
        if isinstance(kept, Positions):
            return kept._replace(kept=put(kept.kept), tiles=put(kept.tiles))
        if not isinstance(kept, Blocks):
            return put(kept)
        return kept._replace(kept=put(kept.kept), channels=None if kept.channels is None else put(kept.channels))

    return {name: moved(kept) for name, kept in thinned.items()}


def compared(found, expected, get):
    for ours, theirs in zip(found, expected, strict=True):
        assert (ours is None) == (theirs is None)
        if theirs is not None:
            close(get(ours), theirs)


def check(case, plan, option, forward, backward, put, get):
    """Both passes against the reference."""
    x, w, bias, dy, where, thinned = operands(np.random.default_rng(7), case, plan)
    given, window, groups = OPTIONS[option], *case[2:]
    options = {"scale": given.get("scale", 1.0), **thinned}
    put_options = {**options, **uploaded(thinned, put)}
    bias, where = (array if given.get(name) else None for name, array in (("bias", bias), ("where", where)))
    own = {"relu": given.get("relu", False)}
    y = forward(put(x), put(w), window, groups, bias=None if bias is None else put(bias), **own, **put_options)
    compared([y], [conv.conv2d_reference(x, w, window, groups, bias=bias, **own, **options)], get)
    own = {"wants_dx": given.get("wants_dx", True)}
    found = backward(put(dy), put(x), put(w), window, groups, where=None if where is None else put(where), **own, **put_options)
    compared(found, conv.conv2d_grad_reference(dy, x, w, window, groups, where=where, **own, **options), get)


def of(suffix):
    """The two operations of a device."""
    return getattr(conv, f"conv2d_{suffix}"), getattr(conv, f"conv2d_grad_{suffix}")
