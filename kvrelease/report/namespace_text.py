"""A binding for machines: what a POSIX shell evaluates, and what `kubectl patch` merges."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping

from kvrelease.binding.namespace import NamespaceReport

ANNOTATION = "kvrelease/namespace"


def shell_text(found: NamespaceReport) -> str:
    r"""Lines for `eval`: they set the engine's environment, and append its flags to the positional parameters.

    Every value is quoted for a POSIX shell, and in a comment as JSON, on one line.

    Example:
        eval "$(kvrelease namespace ./models/v1.3 --engine vllm --shell)"
        exec vllm serve ./models/v1.3 "$@"
    """
    settings = found.settings
    lines = [f"export {name}={shlex.quote(value)}" for name, value in settings.env.items()]
    if settings.flags:
        lines.append(f'set -- "$@" {shlex.join(settings.flags)}')
    lines.append(f"kvrelease_namespace={shlex.quote(found.namespace)}")
    lines.append(f"kvrelease_body={shlex.quote(json.dumps(settings.body))}")
    return "\n".join([*lines, *_comments(found)]) + "\n"


def kubernetes_text(found: NamespaceReport, *, container: str) -> str:
    """A strategic merge patch of a workload's pod template: the engine's environment, and the namespace as annotation.

    Lists of arguments cannot be merged, a patch would replace them: the flags are in comments.

    Args:
        found: the binding.
        container: name of the engine's container.

    Example:
        kvrelease namespace ./models/v1.3 --engine vllm --kubernetes > patch.yaml
        kubectl patch deployment llm --patch-file patch.yaml

    Source: Kubernetes, "Update API Objects in Place Using kubectl patch": `containers` and `env` are merged by name.
    """
    import yaml  # noqa: PLC0415 - late: no other page needs it

    env = [{"name": name, "value": value} for name, value in found.settings.env.items()]
    template = {
        "metadata": {"annotations": {ANNOTATION: found.namespace}},
        "spec": {"containers": [{"name": container, **({"env": env} if env else {})}]},
    }
    patch = yaml.safe_dump({"spec": {"template": template}}, sort_keys=False, width=1000)
    comments = []
    if found.settings.flags:
        comments.append(f"# append to this container's args: {json.dumps(list(found.settings.flags))}")
    if found.settings.body:
        comments.append(f"# every request's body carries: {json.dumps(found.settings.body)}")
    return "\n".join([*comments, *_comments(found), patch])


def _comments(found: NamespaceReport) -> list[str]:
    settings = found.settings
    return [
        *_commented("directory, where this store is in use", settings.directories),
        *_commented("prefix, where this store is in use", settings.prefixes),
        *_commented("beside the engine", settings.beside),
    ]


def _commented(what: str, settings: Mapping[str, str]) -> list[str]:
    return [f"# {what}: {name} = {json.dumps(value)}" for name, value in settings.items()]
