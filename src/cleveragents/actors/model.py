"""An actor that is a language model: a plain loop of calls and results, in a process of its own.

The library that speaks to the providers is imported there and nowhere else. What the process is
given of our environment is what the provider's client reads: its key, its address, the proxy.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec

from cleveragents.model.plan_spec import ActorSpec

LOOP = "cleveragents.actors.model_loop"
MISSING = (
    "an actor on a model needs the package pydantic-ai-slim: pip install 'cleveragents[model]'"
)
PREFIXES: dict[str, tuple[str, ...]] = {
    "azure": ("AZURE_", "OPENAI_API_VERSION"),
    "bedrock": ("AWS_",),
    "gateway": ("PYDANTIC_AI_GATEWAY_",),
    "google": ("GOOGLE_", "GEMINI_"),
    "huggingface": ("HF_", "HUGGINGFACE_"),
}
"""What variables of a provider begin with, where it is not its name."""
NETWORK = re.compile(r"(https?|no|all)_proxy|SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE", re.IGNORECASE)
SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL|PROXY", re.IGNORECASE)
SHORTEST_SECRET = 6


def argv_of(spec: ActorSpec) -> Sequence[str]:
    # Without -P it would import what lies in the plan's folder.
    budget = (str(spec.max_steps), str(spec.max_tokens))
    return sys.executable, "-P", "-m", LOOP, spec.model, *budget


def problem_with(spec: ActorSpec, folder: str) -> str | None:
    """Looks for the package, imports nothing."""
    return MISSING if find_spec("pydantic_ai") is None else None


def variables_of(spec: ActorSpec, environ: Mapping[str, str]) -> dict[str, str]:
    """What the provider's client reads; nobody but this process gets it."""
    provider = re.split(r"[:/-]", spec.model, maxsplit=1)[0]
    known = PREFIXES.get(provider, (f"{provider.upper()}_",))
    return {
        name: value
        for name, value in environ.items()
        if name.startswith(known) or NETWORK.fullmatch(name)
    }


def secrets_of(variables: Mapping[str, str]) -> tuple[str, ...]:
    """Those values that must not be kept of anything the process says."""
    return tuple(
        value
        for name, value in variables.items()
        if SECRET.search(name) and len(value) >= SHORTEST_SECRET
    )
