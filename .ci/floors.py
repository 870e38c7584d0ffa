"""Print, as constraints, the oldest release that pyproject.toml allows of every package a user can get."""

import tomllib
from pathlib import Path

project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
extras = project["optional-dependencies"]
for name in sorted(project["dependencies"] + [one for extra in extras if extra != "dev" for one in extras[extra]]):
    print(name.replace(">=", "=="))
