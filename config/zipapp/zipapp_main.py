"""First lines of the one file: refuses a host it was not built for, in one sentence and before any traceback.

build_zipapp.py puts this into the archive as `__main__.py`, in place of shiv's, which would go on to unpack and
import compiled modules that this Python cannot load. It has to parse on every Python since 2.7: no f-strings, no
annotations. `zipapp_build` holds what the builder knew; `zipapp_launch`, in today's Python, does the rest.
"""

import os
import sys

import zipapp_build

EX_CONFIG = 78


def host_python():
    """Name of the running Python as the builder writes it: implementation, version and `t` for free threading."""
    implementation = getattr(getattr(sys, "implementation", None), "name", "cpython")
    free_threaded = "t" if "t" in getattr(sys, "abiflags", "") else ""
    return "%s %d.%d%s" % (implementation, sys.version_info[0], sys.version_info[1], free_threaded)


def host_machine():
    """Machine of the running Python: the kernel's name for it, or what a 32-bit Python on it can load."""
    return os.uname()[4] if sys.maxsize > 2**32 else "32-bit " + os.uname()[4]


def host_glibc():
    """Version of the GNU C library as (major, minor); (0, 0) where the C library is another one, such as musl."""
    try:
        major, minor = os.confstr("CS_GNU_LIBC_VERSION").split()[1].split(".")[:2]
        return int(major), int(minor)
    except (AttributeError, IndexError, OSError, ValueError):
        return 0, 0


def mismatch():
    """What keeps this file from running here, with the way out; None when nothing does."""
    if host_python() != zipapp_build.PYTHON:
        return 'built for %s, started with %s (%s); start it as "python%s %s", or %s' % (
            zipapp_build.PYTHON,
            host_python(),
            sys.executable,
            zipapp_build.PYTHON.split()[1],
            sys.argv[0],
            'build one for another Python from 3.11 on: "python3 build_zipapp.py --python PYTHON"',
        )
    if host_machine() != zipapp_build.MACHINE:
        return 'built for %s, this host is %s; build one here: "python3 build_zipapp.py"' % (
            zipapp_build.MACHINE,
            host_machine(),
        )
    if host_glibc() < zipapp_build.GLIBC:
        found = "glibc %d.%d" % host_glibc() if host_glibc()[0] else "another C library, such as musl"
        return "needs glibc %d.%d or newer, this host has %s; use a newer or glibc-based system or container image" % (
            zipapp_build.GLIBC[0],
            zipapp_build.GLIBC[1],
            found,
        )
    return None


def main():
    """Refuses, or hands over for good."""
    reason = mismatch()
    if reason is not None:
        sys.stderr.write("%s: %s\n" % (os.path.basename(sys.argv[0]), reason))
        sys.exit(EX_CONFIG)
    from pathlib import Path  # today's Python only, like the module below

    import zipapp_launch

    zipapp_launch.launch(Path(__loader__.archive), zipapp_build.FOLDER)


if __name__ == "__main__":
    main()
