"""``qt-llm models``: the packaged models and where their numbers come from."""

from __future__ import annotations

import sys
from typing import Any

from queuetheory_llm.cli.output import Json, print_json
from queuetheory_llm.cli.terminal import say
from queuetheory_llm.cli.words import cluster_words, engine_words, network_words, workflow_words, workload_words
from queuetheory_llm.files import packaged
from queuetheory_llm.files.model_file import read_document
from queuetheory_llm.files.network_file import network_of
from queuetheory_llm.files.workflow_file import workflow_of


def models(name: str | None = None, *, json: Json = False) -> None:
    """List the packaged models and their sources, or print the file of one.

    Parameters
    ----------
    name
        Print the model file of this name, as a start for your own.
    """
    if name is not None and not json:
        sys.stdout.write(packaged.path(name).read_text(encoding="utf-8"))
        return
    entries = [_entry(each) for each in (packaged.names() if name is None else [name])]
    if json:
        print_json("models", {"models": entries})
        return
    for entry in entries:
        say(entry["name"])
        for key in ("engine", "workload", "network", "workflow", "cluster"):
            if key in entry:
                say(f"  {key}: {entry[key]}")
        for key in ("title", "url"):
            if key in entry["source"]:
                say(f"  {'source' if key == 'title' else key}: {entry['source'][key]}")


def _entry(name: str) -> dict[str, Any]:
    path = packaged.path(name)
    document = read_document(path)
    if document.is_network:
        network = network_of(document)
        return {
            "name": name,
            "path": str(path),
            "network": network_words(network),
            "source": dict(network.source),
        }
    if document.is_workflow:
        cluster = workflow_of(document)
        return {
            "name": name,
            "path": str(path),
            "workflow": workflow_words(cluster.workflow),
            "cluster": cluster_words(cluster),
            "source": dict(cluster.source),
        }
    system = document.system()
    return {
        "name": name,
        "path": str(path),
        "engine": engine_words(system.engine),
        "workload": workload_words(system.workload),
        "source": dict(system.source),
    }
