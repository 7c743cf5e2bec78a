"""`pip install --target` from a folder of wheels; where there is no pip, the one Python brings."""

import os
import runpy
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

wheels, requirements, target = sys.argv[1:]
if find_spec("pip") is None:
    import ensurepip

    [bundled] = (Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl")
    sys.path.insert(0, str(bundled))
shutil.rmtree(target, ignore_errors=True)
os.environ["PIP_DISABLE_PIP_VERSION_CHECK"] = "1"
sys.argv = [
    "pip", "install", "--no-index", "--find-links", wheels, "--no-compile", "--no-cache-dir",
    "--target", target, "-r", requirements,
]  # fmt: skip
runpy.run_module("pip", run_name="__main__")
