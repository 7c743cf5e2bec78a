"""Two versions of a package as wheels, so that the example needs no network."""

import sys
import zipfile  # noqa: TID251 (written, not extracted)
from pathlib import Path

SOURCES = {
    "1.0": "def shout(text):\n    return text.upper()\n",
    "2.0": "def upper(text, *, mark=''):\n    return text.upper() + mark\n",
}
folder = Path(sys.argv[1])
folder.mkdir(exist_ok=True)
for version, source in SOURCES.items():
    about = f"textkit-{version}.dist-info"
    files = {
        "textkit.py": source,
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: textkit\nVersion: {version}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: example\nRoot-Is-Purelib: true\n"
        "Tag: py3-none-any\n",
    }
    record = "".join(f"{name},,\n" for name in (*files, f"{about}/RECORD"))
    with zipfile.ZipFile(folder / f"textkit-{version}-py3-none-any.whl", "w") as wheel:
        for name, text in {**files, f"{about}/RECORD": record}.items():
            wheel.writestr(name, text)
