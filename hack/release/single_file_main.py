"""The ``__main__`` of the command as a single file: runs it from wheels, which root unpacks once for each Python.

C extensions are loaded from files only. Those are in a directory of root, as the program itself, and have byte code, so
that a service without write access starts as fast as from a virtual environment. An older Python reads this file, too.
"""

# ruff: noqa: PLC0415 - what unpacks is not loaded by each start

import json
import os
import sys
import zipimport


def main() -> None:
    """Unpack the wheels for this Python unless they are, and run the command."""
    archive = sys.path[0]
    contents = json.loads(zipimport.zipimporter(archive).get_data("contents.json"))
    target = f"{sys.implementation.cache_tag}-{os.uname().machine}"
    if target not in contents["wheels"]:
        sys.exit(f"aosp-plugin: runs with {', '.join(contents['wheels'])}, but this is {target}: use PYTHON {archive}")
    directory = os.path.join(contents["directory"], target)
    if not os.path.isdir(directory):
        try:
            _unpack(archive, contents["wheels"][target], directory)
        except OSError as error:
            if not os.path.isdir(directory):  # it is there if another process was faster
                sys.exit(f"aosp-plugin: cannot be unpacked: {error}; root does it with `aosp-plugin --version`")
    library = os.path.dirname(os.__file__)
    sys.path[:] = [directory, library, os.path.join(library, "lib-dynload")]  # without packages of the host
    from aosp_plugin.__main__ import main as run

    run()


def _unpack(archive: str, wheels: "list[str]", directory: str) -> None:
    """Unpack wheels to a directory, which has all files or does not exist, also after a loss of power."""
    import compileall
    import tempfile
    import zipfile

    umask = os.umask(0o022)
    try:
        parent = os.path.dirname(directory)
        os.makedirs(parent, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=parent) as work, zipfile.ZipFile(archive) as packed:
            unpacked = os.path.join(work, "unpacked")
            for name in wheels:
                with packed.open(name) as wheel, zipfile.ZipFile(wheel) as files:
                    files.extractall(unpacked)
            compileall.compile_dir(unpacked, quiet=2, stripdir=unpacked, prependdir=directory)
            os.sync()
            os.rename(unpacked, directory)
    finally:
        os.umask(umask)


if __name__ == "__main__":
    main()
