"""Builds the stand-in device, a library in C that the system's compiler makes without CUDA's headers. With $TESSERA_NATIVE,
an unpacked archive of experiments/portable.sh, the wheel carries the program, its data and the command `tessera`, too."""

import os
import re
import shutil
import subprocess
from glob import glob

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from wheel.bdist_wheel import bdist_wheel

NATIVE = os.environ.get("TESSERA_NATIVE")
# Libraries that every distribution's C library brings (PEP 600).
GLIBC = re.compile(r"(libc|libm|libdl|librt|libpthread)\.so\.\d+|ld-linux-x86-64\.so\.2")


class Library(build_ext):
    def get_ext_filename(self, name):
        """It is no module of one version of Python: its name has no version, and every one finds it."""
        return os.path.join(*name.split(".")) + ".so"


class Package(build_py):
    def run(self):
        super().run()
        native = os.path.join(self.build_lib, "tessera", "native")
        shutil.rmtree(native, ignore_errors=True)
        if NATIVE:
            for part in ("bin", "share"):
                shutil.copytree(os.path.join(NATIVE, part), os.path.join(native, part))


class Wheel(bdist_wheel):
    def get_tag(self):
        return "py3", "none", platform(os.path.join(self.bdist_dir, "tessera"))


def platform(folder):
    """manylinux_2_X for the newest symbol of glibc that a binary in `folder` needs, 2.17 at least, which every reader of
    such names knows; linux for one that needs other libraries."""
    newest = 17
    for path in glob(os.path.join(folder, "**"), recursive=True):
        if not os.path.isfile(path) or open(path, "rb").read(4) != b"\x7fELF":
            continue
        said = subprocess.run(["objdump", "-p", path], stdout=subprocess.PIPE, text=True, check=True).stdout
        if not all(GLIBC.fullmatch(name) for name in re.findall(r"NEEDED +(\S+)", said)):
            return "linux_x86_64"
        newest = max([newest, *map(int, re.findall(r" GLIBC_2\.(\d+)", said))])
    return f"manylinux_2_{newest}_x86_64"


setup(
    ext_modules=[Extension(
        "tessera._standin", sorted(glob("standin/*.c")), depends=["standin/standin.h"],
        define_macros=[("_GNU_SOURCE", "1")],
        extra_compile_args=["-std=c11", "-fvisibility=hidden", "-Wall", "-Wextra"],
        # Libraries that need CUDA's driver take this one for it.
        extra_link_args=["-pthread", "-Wl,-soname,libcuda.so.1"])],
    cmdclass={"build_ext": Library, "build_py": Package, "bdist_wheel": Wheel},
    entry_points={"console_scripts": ["tessera = tessera.program:main"] if NATIVE else []})
