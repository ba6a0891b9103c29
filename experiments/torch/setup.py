"""The stand-in device is a library in C that the system's compiler builds; no CUDA header is needed."""

from glob import glob

from setuptools import Extension, setup

setup(ext_modules=[Extension(
    "tessera._standin", sorted(glob("standin/*.c")), depends=["standin/standin.h"],
    define_macros=[("_GNU_SOURCE", "1")],
    extra_compile_args=["-std=c11", "-fvisibility=hidden", "-Wall", "-Wextra"],
    # Libraries that need CUDA's driver take this one for it.
    extra_link_args=["-pthread", "-Wl,-soname,libcuda.so.1"])])
