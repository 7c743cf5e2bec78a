"""The project's file to begin with: every setting a project may have, with its default."""

import json

from cleveragents.model.settings import ANY, KEYS, Settings, shown

HEAD = """\
# Settings of this project, for everybody who works in it; each line shows the default.
# Remove the '#' before a name to change it. What is in force: agents config list
# Your own settings, which protect you and no project can loosen: agents config set KEY VALUE
"""


def project_template() -> str:
    """Nothing is set in it: all of it is comments."""
    defaults = Settings(home="")
    lines = [HEAD]
    for key in KEYS:
        if key.personal != ANY:
            allowed = [choice for choice in key.choices if choice not in key.personal]
            choices = f": {', '.join(allowed)}" if allowed else ""
            value = shown(defaults, key)
            if value in key.personal:
                choices, value = f"{choices} (default: {value})", allowed[0]
            value = json.dumps(value)
            lines.append(f"# {key.help}{choices}\n# {key.name} = {value}\n")
    return "\n".join(lines)
