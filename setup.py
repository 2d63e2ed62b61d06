"""Packaging. The folders `datasets` and `bench` are installed in `numbanet`, never as packages of their own."""

import re
from pathlib import Path

from setuptools import find_packages, setup

here = Path(__file__).parent
version = re.search(r'^__version__ = "(.+)"$', (here / "numbanet/__init__.py").read_text(encoding="utf-8"), re.M).group(1)

cuda = ["numba-cuda[cu13]>=0.30", "numpy<2.5"]  # numba-cuda 0.30 uses names that NumPy 2.5 removed
torch = ["torch==2.13.0"]  # the peer that tests and benchmarks compare with; pinned, because figures name it
plots = ["matplotlib>=3.7"]
onnx = ["onnx>=1.15", "onnxruntime>=1.17"]
graphblas = ["python-graphblas[suitesparse]; platform_system == 'Linux'"]  # another peer, of sparse products
dask = ["dask[distributed]>=2024.8", "joblib>=1.4"]
ray = ["ray>=2.10", "joblib>=1.4"]
# a wheel of MPICH, so that pip alone sets MPI up; beside the MPI of a system, `pip install mpi4py` is enough
mpi = ["mpi4py>=4", "mpich>=4.3; platform_system == 'Linux'"]
# NCCL's library besides, which nccl4py finds; it needs CUDA 13, as `cuda` does
nccl = ["nccl4py>=0.5; platform_system == 'Linux'", "nvidia-nccl-cu13; platform_system == 'Linux'"]
bench = [*torch, *plots, *graphblas, "joblib>=1.4"]
# NVVM, ptxas and nvdisasm compile, assemble and read CUDA kernels on any machine: the tests want them where there is no GPU
compilers = [f"nvidia-{part}>=13; platform_system == 'Linux'" for part in ("cuda-nvcc", "nvvm", "cuda-nvdisasm")]
# the documentation; its walkthroughs draw, and compile kernels
docs = [
    *plots,
    *cuda,
    *compilers,
    "sphinx>=8",
    "pydata-sphinx-theme>=0.16",
    "sphinx-gallery>=0.18",
    "numpydoc>=1.8",
    "myst-parser>=4",
    "sphinx-copybutton>=0.5",
    "ipykernel>=6",  # these three run the walkthroughs as notebooks
    "jupytext>=1.16",
    "nbclient>=0.10",
]

setup(
    name="numbanet",
    version=version,
    description="Neural networks that train faster because work that dropout throws away is never done",
    long_description=(here / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="BSD-3-Clause",
    license_files=["LICENSE"],
    python_requires=">=3.10",
    packages=[
        *find_packages(include=["numbanet*"]),
        "numbanet.datasets",
        "numbanet.bench",
        *(f"numbanet.bench.{folder}" for folder in find_packages("bench")),
    ],
    package_dir={"numbanet.datasets": "datasets", "numbanet.bench": "bench"},
    package_data={"numbanet": ["py.typed", "operations.pyi"], "numbanet_kernels": ["py.typed"]},
    install_requires=[
        "numba>=0.62",
        "numpy>=2.2.5",
        "scikit-learn>=1.6",
        "rich>=13",
        "safetensors>=0.4",
        "scipy>=1.13",
        "threadpoolctl>=3.2",
    ],
    extras_require={
        "cuda": cuda,
        "mkl": ["mkl>=2024; platform_machine == 'x86_64' or platform_machine == 'AMD64'"],
        "plots": plots,
        "torch": ["torch"],
        "onnx": onnx,
        "dask": dask,  # searches on a cluster
        "ray": ray,  # the same, with Ray's
        "mpi": mpi,
        "nccl": nccl,  # sums of gradients between GPUs
        "energy": ["nvidia-ml-py>=12"],  # the energy counters of NVIDIA's GPUs
        "bench": bench,
        "docs": docs,
        "test": [
            *bench,
            *mpi,
            *cuda,
            *compilers,
            *onnx,
            *dask,
            "pytest>=8",
            "pytest-xdist>=3",
            "hypothesis>=6",
            "pandas>=2",
            "mpmath>=1.3",
            "ruff>=0.6",
            "mypy>=1.11",
            "build>=1",
            "twine>=6",
            "readme-renderer[md]>=40",
            "pre-commit>=3",
        ],
    },
    entry_points={"console_scripts": ["numbanet = numbanet.cli:main"], "numbanet.devices": ["torch = numbanet_kernels.torch"]},
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Developers",
        "Intended Audience :: Education",
        "Intended Audience :: Science/Research",
        "Programming Language :: Python :: 3",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
)
