"""The convolutional networks LeNet-5, AlexNet and VGG19. The functions `lenet5`, `alexnet` and `vgg19` return lists of layers;
estimators take their names, as in `Net("lenet5")`.

All networks are adapted to small images, (1, 28, 28) or (3, 32, 32), as in *DNN Training Acceleration via Exploring GPGPU
Friendly Sparsity*, section 7. If `batch_norm` is True, a `BatchNorm2d` follows each convolution, which then has no bias.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from ..device import Device
from ..layers import ActivationSpec, BatchNorm2d, Conv2d, Flatten, Layer, Linear, MaxPool2d, ReLU, Sequential
from ..plans import Plans

Shape = tuple[int, int, int]


def _images(model: str, image_shape: Sequence[int], least: int) -> Shape:
    shape = tuple(image_shape) if isinstance(image_shape, (Sequence, np.ndarray)) else ()
    if len(shape) != 3 or not all(isinstance(n, (int, np.integer)) and n > 0 for n in shape) or min(shape[1:]) < least:
        last = len(shape) == 3 and shape[2] in (1, 3) and isinstance(shape[0], int) and min(shape[:2]) >= least
        way_out = "; channels come first: X.transpose(0, 3, 1, 2)" * last
        raise ValueError(
            f"{model}: image_shape must be (C, H, W) with H and W of at least {least}, got {image_shape!r}{way_out}"
        )
    return shape


def _convolution(inputs: int, outputs: int, kernel: int, padding: int, batch_norm: bool, **options) -> list[Layer]:
    layers: list[Layer] = [Conv2d(inputs, outputs, kernel, padding=padding, bias=not batch_norm, **options)]
    return [*layers, BatchNorm2d(outputs, device=options["device"]), ReLU()] if batch_norm else [*layers, ReLU()]


def _classifier(layers: list[Layer], shape: Shape, widths: Sequence[int], **options) -> list[Layer]:
    """Append `Linear` layers of the given widths, with a ReLU after each layer but the last, and return the layers."""
    shape_ = Sequential(layers).cost(ActivationSpec((1, *shape)), Plans())[1].shape
    widths = [math.prod(shape_[1:]), *widths]
    for i, (inputs, outputs) in enumerate(zip(widths, widths[1:])):
        last = i + 2 == len(widths)
        ends = [Linear(inputs, outputs, init="glorot" if last else "he", **options)] + [ReLU()] * (not last)
        layers = [*layers, *(ends if i else [Flatten(), *ends])]
    return layers


def lenet5(
    image_shape: Sequence[int] = (1, 28, 28),
    classes: int = 10,
    batch_norm: bool = False,
    rng: np.random.Generator | int | None = None,
    device: str | Device = "cpu",
) -> list[Layer]:
    """LeNet-5 (LeCun et al. 1998): 5x5 convolutions of 6 and 16 filters, linear layers of 120, 84 and `classes`.

    Images of 28 x 28 are padded by 2, to the 32 x 32 of the original. The original has a scaled tanh, trained subsampling and a
    partly connected second layer; here they are replaced by ReLU, max pooling and full connections, as is usual now.

    Parameters
    ----------
    image_shape : (int, int, int), default=(1, 28, 28)
        Channels, height and width of the images.
    classes : int, default=10
        Number of outputs.
    batch_norm : bool, default=False
        If True, a `BatchNorm2d` follows each convolution, which then has no bias.
    rng : numpy.random.Generator or int, optional
        Source of the initial weights.
    device : str or Device, default="cpu"
        Device of the parameters.

    Raises
    ------
    ValueError
        If the images are smaller than 12 x 12.
    """
    shape, rng = _images("lenet5", image_shape, 12), np.random.default_rng(rng)
    options = {"rng": rng, "device": device}
    layers = [
        *_convolution(shape[0], 6, 5, 2, batch_norm, **options),
        MaxPool2d(2),
        *_convolution(6, 16, 5, 0, batch_norm, **options),
        MaxPool2d(2),
    ]
    return _classifier(layers, shape, (120, 84, classes), **options)


def alexnet(
    image_shape: Sequence[int] = (3, 32, 32),
    classes: int = 10,
    batch_norm: bool = False,
    rng: np.random.Generator | int | None = None,
    device: str | Device = "cpu",
) -> list[Layer]:
    """AlexNet (Krizhevsky et al. 2012) for small images: five convolutions of 64, 192, 384, 256 and 256 filters.

    The original takes images of 224 x 224, with a first convolution of 11 x 11 with stride 4, a second one of 5 x 5,
    overlapping pooling, and linear layers of 4096. Here all convolutions are 3 x 3 with stride 1, pooling is 2 x 2 after the
    first, second and fifth convolution, and the linear layers have 1024, 1024 and `classes` outputs. Parameters and errors are
    those of `lenet5`, but images may be as small as 8 x 8.
    """
    shape, rng = _images("alexnet", image_shape, 8), np.random.default_rng(rng)
    options, layers = {"rng": rng, "device": device}, []
    for before, filters, pooled in zip((shape[0], 64, 192, 384, 256), (64, 192, 384, 256, 256), (1, 1, 0, 0, 1)):
        layers += _convolution(before, filters, 3, 1, batch_norm, **options) + [MaxPool2d(2)] * pooled
    return _classifier(layers, shape, (1024, 1024, classes), **options)


def vgg19(
    image_shape: Sequence[int] = (3, 32, 32),
    classes: int = 10,
    batch_norm: bool = False,
    rng: np.random.Generator | int | None = None,
    device: str | Device = "cpu",
) -> list[Layer]:
    """VGG19 (Simonyan & Zisserman 2015, configuration E): sixteen 3x3 convolutions of 64 to 512 filters in five groups.

    Each group ends with 2x2 pooling if its images are larger than one pixel. The original takes images of 224 x 224 and has
    linear layers of 4096, 4096 and 1000 outputs; here a single linear layer of `classes` outputs follows, as is usual for small
    images. Parameters and errors are those of `lenet5`, but images may be as small as 8 x 8.
    """
    shape, rng = _images("vgg19", image_shape, 8), np.random.default_rng(rng)
    options, layers, before, side = {"rng": rng, "device": device}, [], shape[0], min(shape[1:])
    for filters, count in ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)):
        for _ in range(count):
            layers += _convolution(before, filters, 3, 1, batch_norm, **options)
            before = filters
        if side > 1:
            layers.append(MaxPool2d(2))
            side //= 2
    return _classifier(layers, shape, (classes,), **options)


def network(name: str, shape: tuple[int, ...], classes: int, rng: np.random.Generator) -> list[Layer]:
    """Return the layers of the network `name` for samples of shape `shape`; raise ValueError if samples are not images."""
    if len(shape) != 3:
        gray = f"for images of one channel set image_shape={(1, *shape)}, or give X[:, None]"
        raise ValueError(
            f"{name} takes images (C, H, W), but X has samples of shape {shape}; "
            f"{gray if len(shape) == 2 else 'for flat samples set image_shape=(C, H, W)'}"
        )
    return MODELS[name](shape, classes, rng=rng)


MODELS: dict[str, Callable[..., list[Layer]]] = {"lenet5": lenet5, "alexnet": alexnet, "vgg19": vgg19}
