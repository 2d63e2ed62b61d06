"""malloc and free of CUDA's device library, for kernels of Numba."""

from numba import types

from numbanet_kernels.runtime.declare import cuda

if cuda is not None:
    malloc = cuda.declare_device("malloc", types.CPointer(types.float32)(types.uint64), abi="c")
    free = cuda.declare_device("free", types.void(types.CPointer(types.float32)), abi="c")
    address_of = cuda.declare_device("malloc", types.uint64(types.uint64), abi="c")
    free_at = cuda.declare_device("free", types.void(types.uint64), abi="c")
