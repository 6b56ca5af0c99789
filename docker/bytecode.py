"""Writes the bytecode of what a service loads when it starts, so that its containers need not compile it each time,
which is more than half of the time that they take to start: `python bytecode.py MODULE...`, in the environment that it
is for. Imports these modules and compiles what this has loaded from there, and no more: images are to stay small.
"""

import compileall
import importlib
import py_compile
import sys
from pathlib import Path


def main(names: list[str]) -> None:
    """Raises ImportError, PyCompileError."""
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH  # the source's time of change may be another one in the image
    for name in names:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            # It is mounted later. What would be loaded after it can't be seen here, so all of the package.
            package = sys.modules[name.partition(".")[0]]
            compileall.compile_dir(package.__path__[0], quiet=1, invalidation_mode=mode)
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if file and file.endswith(".py") and Path(file).is_relative_to(sys.prefix):
            py_compile.compile(file, doraise=True, invalidation_mode=mode)


if __name__ == "__main__":
    main(sys.argv[1:])
