"""Take of a library only what a server needs.

`import uvicorn` loads its command line with it: click, multiprocessing, the watching of files,
3 MB and 40 ms in every sandbox, for nothing. Its parts can be imported without the package's own
code, which is run at the first look at anything that it would have defined.
"""

import importlib
import importlib.util
import sys
from collections.abc import Mapping


def defer_package(name: str, parts: Mapping[str, str]) -> None:
    """Make the modules of a package importable without the package's `__init__`.

    `parts` says in which module an attribute of the package is defined; any other loads it all.
    """
    if name in sys.modules:
        return
    spec = importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        return  # the import that follows says what is missing
    module, loader = importlib.util.module_from_spec(spec), spec.loader

    def load(attribute: str) -> object:
        if attribute in parts:
            return getattr(importlib.import_module(parts[attribute]), attribute)
        del module.__dict__["__getattr__"]  # or what it does not define would lead here for ever
        loader.exec_module(module)
        return getattr(module, attribute)

    module.__dict__["__getattr__"] = load
    sys.modules[name] = module
