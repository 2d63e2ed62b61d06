"""CUDA C++ that is linked to kernels: its barriers, and what is refused in it."""

import numpy as np
import pytest

from numbanet_kernels import card
from numbanet_kernels.runtime import declare

pytestmark = [pytest.mark.skipif(card.problem() is not None, reason=str(card.problem())), pytest.mark.usefixtures("the_card")]
cuda = declare.cuda
F = np.float32


def test_textures_in_linked_code_are_refused_by_name(tmp_path):
    path = tmp_path / "textures.cu"
    path.write_text("""
        extern "C" __device__ int fetch(float *result, unsigned long long texture, int i)
        {
            *result = tex1Dfetch<float>(texture, i);
            return 0;
        }
    """)
    fetch = cuda.declare_device("fetch", "float32(uint64, int32)", link=[str(path)])

    @cuda.jit
    def kernel(x):
        x[0] = fetch(0, 1)

    with pytest.raises(RuntimeError, match=r"tex\.1d\.v4\.f32\.s32 .*: textures and surfaces are not in this machine"):
        kernel[1, 1](np.ones(1, F))


@pytest.mark.slow
@pytest.mark.parametrize("right", [True, False])
def test_barriers_of_cuda_cpp(tmp_path, right):
    """cuda::barrier, of 96 threads, once more than their warps; without it the same is a race."""
    FFI = pytest.importorskip("cffi").FFI
    path = tmp_path / "barriers.cu"
    path.write_text(r"""
        #include <cuda/barrier>
        #include <cuda/std/utility>

        extern "C" __device__ int turned(int *result, float *x, int right)
        {
            using barrier = cuda::barrier<cuda::thread_scope_block>;
            __shared__ alignas(barrier) char room[sizeof(barrier)];
            __shared__ float held[96];
            barrier *all = reinterpret_cast<barrier *>(room);
            int i = threadIdx.x;
            if (i == 0)
                init(all, blockDim.x);
            __syncthreads();
            for (int k = 0; k < 3; ++k) {
                held[i] = x[i];
                if (right)
                    all->arrive_and_wait();
                x[i] = held[95 - i] + k;
                auto token = all->arrive();
                all->wait(cuda::std::move(token));
            }
            *result = 0;
            return 0;
        }
    """)
    turned = cuda.declare_device("turned", "int32(CPointer(float32), int32)", link=[str(path)])

    @cuda.jit
    def kernel(x, right):
        turned(ffi.from_buffer(x), right)

    ffi = FFI()
    data = np.arange(96, dtype=F)
    if right:
        kernel[1, 96](data, 1)
        np.testing.assert_array_equal(data, np.arange(95, -1, -1) + 3)
    else:
        with pytest.raises(RuntimeError, match="shared race: read here, and written by thread"):
            kernel[1, 96](data, 0)
