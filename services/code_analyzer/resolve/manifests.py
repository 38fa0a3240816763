"""Launch files that are no scripts: Kubernetes jobs, Compose files, sweeps, and the like, as commands with resources."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from posixpath import dirname
from typing import Any, Final

from schedmate.services.code_analyzer.resolve.configs import ConfigError, documents
from schedmate.services.code_analyzer.resolve.files import Files
from schedmate.services.code_analyzer.resolve.launch import env_file
from schedmate.services.code_analyzer.resolve.ran import Arg, Ran
from schedmate.services.code_analyzer.resolve.shell import Shell
from schedmate.services.code_analyzer.resolve.shell_words import Variable
from schedmate.services.code_analyzer.resolve.values import HOLE, Place, Record, V

DEPTH_MAX: Final = 12
_GPU: Final = re.compile(r"(nvidia\.com|amd\.com|gpu\.intel\.com)/(gpu|mig.*)|^gpus?$", re.IGNORECASE)


@dataclass(slots=True)
class Manifest:
    """Commands with what the file says about resources."""

    ran: list[Ran] = field(default_factory=list)
    facts: dict[str, list[V]] = field(default_factory=dict)


def read(path: str, files: Files) -> Manifest | None:
    """Return what a YAML launch file starts, None when it is none."""
    text = files.text(path)
    if text is None:
        return None
    try:
        records = documents(text, path, files)
    except ConfigError as error:
        files.missing(f"{path}: {error}")
        return None
    for record in records:
        for rule in (_kubernetes, _compose, _sweep, _task):
            manifest = rule(record, path, files)
            if manifest is not None and manifest.ran:
                return manifest
    return None


def _entry(record: Any, path: str) -> V | None:
    return record.get(path) if isinstance(record, Record) else None


def _kubernetes(record: Record, _path: str, _files: Files) -> Manifest | None:
    if "kind" not in record.entries or not isinstance(record.entries.get("spec", V(None)).data, Record):
        return None
    manifest = Manifest()
    spec = record.entries["spec"].data
    replicas = _replicas(spec)
    best: tuple[Record, Place | None] | None = None
    total, place = 0, None
    for name, count, template in replicas:
        container = _container(template)
        if container is None:
            continue
        gpus = _gpus(container)
        if gpus is not None:
            manifest.facts["gpus_per_node"] = [gpus]
            total += int(count.data) if isinstance(count.data, int) else 0
            place = place or count.place
        if best is None or name in ("Master", "Launcher", "Chief", "head"):
            best = (container, None)
    if best is None:
        return None
    per_node = spec.entries.get("nprocPerNode") or spec.entries.get("slotsPerWorker")
    if per_node is not None and str(per_node.data).isdigit():
        manifest.facts["processes_per_node"] = [V(per_node.data, per_node.place)]
    if total:
        manifest.facts["nodes"] = [V(total, place)]
    _run(best[0], manifest)
    return manifest


def _replicas(spec: Record) -> list[tuple[str, V, Any]]:
    found: list[tuple[str, V, Any]] = []
    for key, value in spec.entries.items():
        if str(key).endswith("ReplicaSpecs") and isinstance(value.data, Record):
            for name, inner in value.data.entries.items():
                count = _entry(inner.data, "replicas") or V(1, inner.place)
                found.append((str(name), count, inner.data))
        elif key in ("tasks", "replicatedJobs") and isinstance(value.data, list):
            for inner in value.data:
                count = _entry(inner.data, "replicas") or V(1, inner.place)
                name = _entry(inner.data, "name")
                found.append((str(name.data) if name is not None else "", count, inner.data))
    if not found:
        count = spec.entries.get("parallelism") or spec.entries.get("completions") or V(1, None)
        found.append(("", count, spec))
    return found


def _container(template: Any, depth: int = 0) -> Record | None:
    """Return the first container below a template."""
    if not isinstance(template, Record) or depth > DEPTH_MAX:
        return None
    containers = template.entries.get("containers")
    if containers is not None and isinstance(containers.data, list):
        return next((c.data for c in containers.data if isinstance(c.data, Record)), None)
    for value in template.entries.values():
        found = _container(value.data, depth + 1)
        if found is not None:
            return found
    return None


def _gpus(container: Record) -> V | None:
    for where in ("resources.limits", "resources.requests"):
        inner = _entry(container, where)
        for key, value in inner.data.entries.items() if inner is not None and isinstance(inner.data, Record) else ():
            if _GPU.search(str(key)) and str(value.data).isdigit():
                return V(int(value.data), value.place)
    return None


def _words(value: V | None) -> list[Arg]:
    if value is None or value.place is None:
        return []
    if isinstance(value.data, list):
        return [Arg(str(v.data), v.place or value.place) for v in value.data if isinstance(v, V)]
    return [Arg(str(value.data), value.place)] if isinstance(value.data, str) else []


def _variables(container: Record) -> dict[str, Arg]:
    listed = container.entries.get("env") or container.entries.get("environment")
    found: dict[str, Arg] = {}
    if listed is None:
        return found
    if isinstance(listed.data, Record):
        for key, inner in listed.data.entries.items():
            if inner.place is not None:
                found[str(key)] = Arg(str(inner.data), inner.place)
    for item in listed.data if isinstance(listed.data, list) else []:
        name, value = _entry(item.data, "name"), _entry(item.data, "value")
        if name is not None and value is not None and value.place is not None:
            found[str(name.data)] = Arg(str(value.data), value.place)
        elif isinstance(item.data, str) and "=" in item.data and item.place is not None:
            key, _, text = item.data.partition("=")
            found[key] = Arg(text, item.place)
    return found


def _run(container: Record, manifest: Manifest) -> None:
    environment = _variables(container)
    words = _words(container.entries.get("command")) + _words(container.entries.get("args"))
    if not words:
        return
    expanded = [
        Arg(re.sub(r"\$\((\w+)\)", lambda m: environment[m[1]].text if m[1] in environment else HOLE, w.text), w.place)
        for w in words
    ]
    manifest.ran.append(Ran(expanded, environment, words[0].place))


def _compose(record: Record, path: str, files: Files) -> Manifest | None:
    services = record.entries.get("services")
    if services is None or not isinstance(services.data, Record):
        return None
    manifest = Manifest()
    for value in services.data.entries.values():
        command = _entry(value.data, "command")
        if not isinstance(value.data, Record) or command is None or command.place is None:
            continue
        extra: dict[str, Arg] = {}
        for name in _words(value.data.entries.get("env_file")):
            extra.update(env_file(name.text, files, dirname(path)))
        environment = {**extra, **_variables(value.data)}
        if isinstance(command.data, list):
            manifest.ran.append(Ran(_words(command), environment, command.place))
        else:
            shell = Shell(files, {k: Variable(v.text, v.place, exported=True) for k, v in environment.items()})
            shell.line_offset = (command.place.line or 1) - 1
            shell.run_text(str(command.data).replace("$$", "$"), path)
            manifest.ran += shell.ran
        devices = _entry(value.data, "deploy.resources.reservations.devices")
        for device in devices.data if devices is not None and isinstance(devices.data, list) else []:
            count, ids = _entry(device.data, "count"), _entry(device.data, "device_ids")
            if ids is not None and isinstance(ids.data, list):
                manifest.facts["gpus_per_node"] = [V(len(ids.data), ids.place)]
            elif count is not None and isinstance(count.data, int):
                manifest.facts["gpus_per_node"] = [V(count.data, count.place)]
    return manifest


def _sweep(record: Record, path: str, files: Files) -> Manifest | None:
    """A sweep of Weights & Biases: its program with the parameters that have one value."""
    program, parameters = record.entries.get("program"), record.entries.get("parameters")
    if program is None or parameters is None or program.place is None or not isinstance(parameters.data, Record):
        return None
    del path, files
    words: list[Arg] = []
    for name, inner in parameters.data.entries.items():
        value = _entry(inner.data, "value")
        values = _entry(inner.data, "values")
        if value is None and values is not None and isinstance(values.data, list) and len(values.data) == 1:
            value = values.data[0]
        place = inner.place or program.place
        words.append(Arg(f"--{name}={value.data if value is not None else HOLE}", place))
    command = [Arg("python", program.place), Arg(str(program.data), program.place)]
    prefix = [w for w in _words(record.entries.get("command")) if not w.text.startswith("${") and w.text != "python"]
    flags = any("no_hyphens" in w.text for w in _words(record.entries.get("command")))
    if flags:
        words = [Arg(w.text.lstrip("-"), w.place) for w in words]
    at = prefix or []
    return Manifest(
        [Ran([Arg("wandb", program.place), Arg("launch", program.place), *at, *command, *words], {}, program.place)]
    )


def _task(record: Record, path: str, files: Files) -> Manifest | None:
    """SkyPilot, dstack and their like: `run:` or `commands:` with `resources:` and `num_nodes:`."""
    run = (
        record.entries.get("run")
        or record.entries.get("commands")
        or record.entries.get("entrypoint")
        or record.entries.get("command")
    )
    if run is None or run.place is None:
        return None
    manifest = Manifest()
    environment = _variables(Record({"env": record.entries.get("envs") or record.entries.get("env") or V(Record())}))
    text = run.data if isinstance(run.data, str) else "\n".join(w.text for w in _words(run))
    shell = Shell(files, {k: Variable(v.text, v.place, exported=True) for k, v in environment.items()})
    shell.line_offset = run.place.line or 0
    shell.run_text(text, path)
    manifest.ran = shell.ran
    nodes = record.entries.get("num_nodes") or record.entries.get("nodes")
    if nodes is not None and isinstance(nodes.data, int):
        manifest.facts["nodes"] = [nodes]
    gpus = (
        _entry(record, "resources.accelerators") or _entry(record, "resources.gpu") or _entry(record, "resources.gpus")
    )
    if gpus is not None:
        if isinstance(gpus.data, Record) and gpus.data.entries:
            gpus = next(iter(gpus.data.entries.values()))
        manifest.facts["gpus_per_node"] = [V(str(gpus.data), gpus.place)]
    return manifest
