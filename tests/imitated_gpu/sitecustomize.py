"""Python imports this module when it starts: the device must be there before torch is."""

import importlib.abc
import importlib.util
import os
import sys

if "IMITATED_GPU" in os.environ:

    class Finder(importlib.abc.MetaPathFinder):
        """Finds torch once, and surrounds its import."""

        def find_spec(self, name, path, target=None):
            if name != "torch":
                return None
            sys.meta_path.remove(self)
            spec = importlib.util.find_spec("torch")
            execute = spec.loader.exec_module

            def exec_module(module):
                import torch_cuda

                device = torch_cuda.load(spec.submodule_search_locations[0])
                execute(module)
                torch_cuda.install(device)

            spec.loader.exec_module = exec_module
            return spec

    sys.meta_path.insert(0, Finder())
