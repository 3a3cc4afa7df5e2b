"""The package of the plugin once more, in which each import of a module of the system gets the simulated one.

The plugin reaches its host through modules: fifty of its own import ``os`` or ``time``. To pass a system to each of
their functions would be code in the plugin that only tests need, and to set names in each of them is a list that
misses the next import. So the package is loaded a second time, under the name ``COPY``, with built-in functions of its
own: its ``open`` is that of the simulated host, and its ``__import__`` finds the simulated modules before the real
ones, and this copy of the package instead of the package. An import at the top or in a function, of a module or of a
name in it, with any alias, as the default of an argument: all get the simulated system, in modules that do not exist
yet as well. A function that a simulated module does not have raises an error, and so do modules that nothing in the
plugin needs, such as ``subprocess``.

Where the package reaches the kernel or another process otherwise, by a system call, a socket, a signal or a thread, an
edge of ``system`` replaces the function or class itself, where it is defined and before anybody can import it.

A module of the simulation imports the package ``with LOADER.importing()``, and so gets the copy.

The copy is loaded once for all simulations of a process. Which host it has is decided when a function is called.
"""

import builtins
import contextlib
import importlib.util
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import ModuleType
from typing import Any

PACKAGE = "aosp_plugin"
COPY = f"simulated_{PACKAGE}"
(PACKAGE_DIRECTORY,) = importlib.util.find_spec(PACKAGE).submodule_search_locations  # type: ignore[union-attr, misc]

_import = builtins.__import__


class Loader(MetaPathFinder):
    """Finds the modules of the copy, and loads them."""

    def __init__(
        self,
        modules: Mapping[str, Any],
        missing: Collection[str],
        functions: Mapping[str, Any],
        edges: Mapping[str, Callable[[Any], Mapping[str, Any]]],
    ) -> None:
        """``modules`` are those of the system by their names, ``functions`` the built-in ones.

        ``missing`` are modules that nothing simulates: to import one is an error. ``edges`` has, by the name of a
        module in the package, a function that gets the module and returns, by name, what replaces functions and
        classes of it.
        """
        self._modules, self._missing, self.edges = modules, missing, edges
        self.builtins = {**vars(builtins), **functions, "__import__": self._import}
        sys.meta_path.insert(0, self)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """See ``MetaPathFinder``."""
        if fullname == COPY:
            spec = importlib.util.spec_from_file_location(
                COPY, f"{PACKAGE_DIRECTORY}/__init__.py", submodule_search_locations=[PACKAGE_DIRECTORY]
            )
        elif fullname.startswith(f"{COPY}."):
            spec = PathFinder.find_spec(fullname, path, target)
        else:
            return None
        if spec is not None and spec.origin is not None:
            spec.loader = _Module(self, spec.name, spec.origin)
        return spec

    @contextlib.contextmanager
    def importing(self) -> Iterator[None]:
        """Let imports of the package get the copy, in the context."""
        before = builtins.__import__
        builtins.__import__ = _import_copy  # type: ignore[assignment] # import statements pass all arguments by position
        try:
            yield
        finally:
            builtins.__import__ = before

    def _import(self, name: str, *rest: Any) -> Any:
        """Import a module in the copy; ``rest`` is what an import statement passes to ``__import__``."""
        _, _, names, level = rest
        top, _, below = name.partition(".")
        if not level and top in self._missing:
            raise ImportError(f"a simulation has no {top}")
        if level or top not in self._modules:
            return _import_copy(name, *rest)
        found = self._modules[top]
        for part in below.split(".") if names and below else ():
            found = getattr(found, part)
        return found


class _Module(SourceFileLoader):
    """The loader of one module of the copy."""

    def __init__(self, loader: Loader, name: str, path: str) -> None:
        super().__init__(name, path)
        self._loader = loader

    def exec_module(self, module: ModuleType) -> None:
        """See ``importlib``."""
        vars(module)["__builtins__"] = self._loader.builtins
        super().exec_module(module)
        edge = self._loader.edges.get(module.__name__.removeprefix(f"{COPY}."))
        replaced = {} if edge is None else edge(module)
        assert replaced.keys() <= vars(module).keys(), f"{module.__name__} has other names than {[*replaced]}"
        vars(module).update(replaced)


def _import_copy(name: str, *rest: Any) -> Any:
    """Import a module, from the copy if it is of the package; no import of the project is relative."""
    if name == PACKAGE or name.startswith(f"{PACKAGE}."):
        name = COPY + name.removeprefix(PACKAGE)
    return _import(name, *rest)
