"""On how many nodes and devices a job runs: what launchers, directives, the environment, the program and the request say, in that order."""

from __future__ import annotations

import re
from typing import Any, Final

from schedmate.schemas.events import Basis
from schedmate.services.code_analyzer.resolve.facts import Facts, Found, as_number
from schedmate.services.code_analyzer.resolve.values import HOLE, Place, V

COUNT_MAX: Final = 100_000


def count_of(value: Any) -> int | None:
    """Return the count that `8`, `gpu:8`, `gpu:h100:8`, `a100:4` or `2:4` (the most) name."""
    text = str(value).strip().strip("\"'")
    if HOLE in text:
        return None
    if re.fullmatch(r"\d+", text):
        number = int(text)
    else:
        found = re.fullmatch(r"(?:[A-Za-z][\w.-]*:)*(\d+)(?:\([^)]*\))?(?:,.*)?", text) or re.fullmatch(
            r"\d+:(\d+)", text
        )
        number = int(found[1]) if found is not None else 0
    return number if 0 < number <= COUNT_MAX else None


def visible_of(value: Any) -> int | None:
    """Return how many devices a list such as `0,1,2,3` names."""
    text = str(value).strip().strip("\"'[]()")
    if not text or not re.fullmatch(r"(?:cuda:|gpu:)?\d+(?:\s*,\s*(?:cuda:)?\d+)*", text):
        return None
    return len(text.split(","))


def conclude(facts: Facts) -> None:
    """Set how many nodes, devices a node and processes the job has, as far as the launch tells."""
    facts.nodes = _nodes(facts)
    facts.gpus = _gpus(facts)
    if facts.nodes is None and facts.gpus is not None:
        total = _first(facts, "processes")
        per_node = facts.gpus.value
        if total is not None and total.value > per_node and total.value % per_node == 0:
            facts.nodes = Found(total.value // per_node, total.place, Basis.COMPUTED)
    if facts.nodes is None and not _may_span(facts):
        facts.nodes = Found(1, facts.launch.place, Basis.INFERRED, 0.7)
    if facts.nodes is not None and facts.gpus is not None:
        facts.world = facts.nodes.value * facts.gpus.value
    else:
        total, hosts = _first(facts, "processes"), _hosts(facts)
        facts.world = total.value if total is not None else sum(hosts[0]) or None if hosts is not None else None
    workers = facts.call(r"(^|\.)ScalingConfig$")
    count = (
        as_number(workers.kwargs["num_workers"].data)
        if workers is not None and "num_workers" in workers.kwargs
        else None
    )
    if isinstance(count, int) and facts.gpus is None:
        facts.world = count


def alone(facts: Facts) -> None:
    """Take one device for a program that is started plainly and spreads over nothing that can be seen."""
    launch = facts.launch
    if facts.gpus is None and (named := _devices_named(facts)) is not None:
        facts.gpus = named
        facts.world = named.value * (facts.nodes.value if facts.nodes is not None else 1)
    if facts.gpus is not None or launch.launchers and launch.launchers[-1][0] not in ("papermill", "jupyter", "wandb"):  # noqa: RUF021 - read as a whole
        return
    if (
        facts.nodes is None
        or facts.nodes.value != 1
        or launch.facts.get("hostfile")
        or any(c.certain and _SPREADS.search(c.name) for c in facts.events)
    ):
        return
    if any(re.search(r"(^|[._])mesh", s.path.lower()) for s in facts.settings):
        return
    single = facts.framework is not None and facts.framework.default("strategy") == "none"
    if (facts.code and facts.framework is not None) or single:
        facts.gpus = Found(1, launch.place, Basis.INFERRED, 0.6)
        facts.world = 1


def _devices_named(facts: Facts) -> Found | None:
    """Return how many devices the program's own strategy names, one by one."""
    call = facts.call(r"(^|\.)MirroredStrategy$")
    devices = call.argument(0, "devices") if call is not None else None
    if call is None or devices is None or not isinstance(devices.data, list) or not devices.data:
        return None
    return Found(len(devices.data), devices.place or call.place)


_SPREADS: Final = re.compile(
    r"init_process_group|DataParallel$|Strategy$|MirroredStrategy|hvd\.|horovod|pmap|NamedSharding|Mesh\b|\.spawn\b|lightning\S*Trainer|\bpl\.Trainer|ray\.train|deepspeed|DeploymentConfig|shard_map|YOLO"
)


def _may_span(facts: Facts) -> bool:
    """Tell whether the job may run on several nodes, whose number is not known."""
    launch = facts.launch
    names = [name for name, _ in launch.launchers]
    if (
        launch.facts.get("nodes")
        or any(n in ("srun", "mpirun", "jsrun", "ray", "aprun") for n in names)
        or launch.facts.get("hostfile")
    ):
        return not (names and names[-1] == "mpirun" and not launch.facts.get("nodes"))
    table = facts.framework.table if facts.framework is not None else {}
    return bool(table.get("cluster"))


def _first(facts: Facts, key: str) -> Found | None:
    """Return a fact of the launch, the innermost first."""
    for value in reversed(facts.launch.facts.get(key, [])):
        if (
            key == "gpus_per_node"
            and re.match(r"[a-z]", str(value.data))
            and not re.match(r"gpu|[ahvlbt]\d|mi\d|rtx|gh|tesla|nvidia", str(value.data), re.IGNORECASE)
        ):
            continue
        number = count_of(value.data)
        if number is not None:
            return Found(number, value.place)
    return None


def _hosts(facts: Facts) -> tuple[list[int], Place | None] | None:
    """Return the slots of each host that a list or a file of hosts names, exclusions applied."""
    launch = facts.launch
    for value in reversed(launch.facts.get("hosts", [])):
        names = [h for h in str(value.data).split(",") if h]
        return [int(h.rsplit(":", 1)[1]) if re.search(r":\d+$", h) else 0 for h in names], value.place
    for value in reversed(launch.facts.get("hostfile", [])):
        found = facts.files.find(str(value.data), launch.folder)
        text = facts.files.text(found) if found is not None else None
        if found is None or text is None:
            continue
        slots: dict[str, int] = {}
        for line in text.splitlines():
            words = line.split("#", 1)[0].split()
            if words:
                number = re.search(r"(?:slots=|:)(\d+)", line)
                slots[words[0].split(":")[0]] = int(number[1]) if number is not None else 0
        _restrict(slots, launch.facts)
        return list(slots.values()), facts.files.place(found, 1)
    for value in reversed(launch.facts.get("hosts_list", [])):
        return [0 for h in str(value.data).split(",") if h], value.place
    return None


def _restrict(slots: dict[str, int], facts: dict[str, list[V]]) -> None:  # noqa: C901 - cases of one kind, one after another
    """Apply deepspeed's `--include` and `--exclude`: `host:0,1@other:2`."""
    for key in ("include", "exclude"):
        for value in facts.get(key, []):
            chosen: dict[str, int | None] = {}
            for part in str(value.data).strip("\"'").split("@"):
                host, joined, ids = part.partition(":")
                chosen[host] = len(ids.split(",")) if joined else None
            if key == "include":
                for host in list(slots):
                    if host not in chosen:
                        del slots[host]
                    elif chosen[host] is not None:
                        slots[host] = chosen[host] or 0
            else:
                for host, count in chosen.items():
                    if host in slots and count is None:
                        del slots[host]
                    elif host in slots:
                        slots[host] -= count or 0


def _nodes(facts: Facts) -> Found | None:
    hosts = _hosts(facts)
    inner = _inner(facts, "nodes")
    if inner is not None:
        return inner
    if hosts is not None and hosts[0]:
        return Found(len(hosts[0]), hosts[1])
    computed = _from_processes(facts)
    if computed is not None:
        return computed
    setting = facts.number("nodes")
    if setting is not None and setting.rank <= 4 and float(setting.data).is_integer():  # noqa: PLR2004 - not a mere assignment
        return Found(int(setting.data), setting.value.place)
    return _first(facts, "nodes")


def _inner(facts: Facts, key: str) -> Found | None:
    """Return what the innermost launcher says, unless it only says what could not be known."""
    values = facts.launch.facts.get(key, [])
    for value in reversed(values):
        number = count_of(value.data)
        if number is not None:
            return Found(number, value.place)
        if HOLE in str(value.data):
            continue
    return None


def _from_processes(facts: Facts) -> Found | None:
    total = _first(facts, "processes")
    per_node = _first(facts, "processes_per_node") or _first(facts, "tasks_per_node") or _first(facts, "gpus_per_node")
    if total is None or per_node is None:
        size, per = facts.number("world_size"), facts.number("gpus_per_node")
        if size is not None and per is not None and size.data % per.data == 0:
            return Found(int(size.data // per.data), size.value.place, Basis.COMPUTED)
        return None
    if total.value % per_node.value == 0:
        return Found(total.value // per_node.value, total.place, Basis.COMPUTED)
    return None


def _gpus(facts: Facts) -> Found | None:
    hosts = _hosts(facts)
    if hosts is not None and hosts[0]:
        if len(set(hosts[0])) > 1:
            return None  # nodes that differ have no one number
        if hosts[0][0]:
            return Found(hosts[0][0], hosts[1])
    rules = (_launched, _from_program, _visible, _asked, _divided)
    return next((found for rule in rules if (found := rule(facts)) is not None), None)


def _launched(facts: Facts) -> Found | None:
    """What the launcher that starts the processes says."""
    per_node = _first(facts, "processes_per_node")
    if per_node is not None:
        return per_node
    if any(name == "deepspeed" for name, _ in facts.launch.launchers):
        return _first(facts, "gpus_per_node")
    total = _first(facts, "processes")
    launchers = [name for name, _ in facts.launch.launchers]
    if total is None or not launchers or launchers[-1] == "srun":
        return None
    nodes = _inner(facts, "nodes")
    if nodes is not None and total.value % nodes.value == 0:
        return Found(total.value // nodes.value, total.place, Basis.COMPUTED if nodes.value > 1 else Basis.EXPLICIT)
    if launchers[-1] == "accelerate" and nodes is None:
        return total
    return None


def _from_program(facts: Facts) -> Found | None:
    for setting in facts.of("gpus_per_node"):
        if setting.rank > 4 and not setting.inside.endswith("Trainer"):  # noqa: PLR2004 - not a mere assignment
            continue
        listed = setting.data if isinstance(setting.data, (list, tuple)) else None
        number = len(listed) if listed else as_number(setting.data)
        text = str(setting.data)
        if isinstance(setting.data, str) and "," in text and visible_of(text) is not None:
            number = visible_of(text)
        if isinstance(number, int) and 0 < number <= 64 and not isinstance(setting.data, bool):  # noqa: PLR2004 - no node has more
            return Found(number, setting.value.place)
    for setting in facts.of("devices_list"):
        number = visible_of(setting.data) if isinstance(setting.data, str) else None
        if number is not None and ("," in str(setting.data) or setting.rank == 0) and "cuda" not in str(setting.data):
            return Found(number, setting.value.place)
    return None


def _visible(facts: Facts) -> Found | None:
    for value in reversed(facts.launch.facts.get("visible", [])):
        number = visible_of(value.data)
        if number is not None:
            return Found(number, value.place)
    arg = facts.launch.environment.get("CUDA_VISIBLE_DEVICES")
    number = visible_of(arg.text) if arg is not None else None
    if number is None or arg is None:
        call = next((c for c in facts.events if c.name.endswith("CUDA_VISIBLE_DEVICES")), None)
        return (
            Found(visible_of(call.args[0].data), call.place)
            if call is not None and call.args and visible_of(call.args[0].data)
            else None
        )
    return Found(number, arg.place)


def _asked(facts: Facts) -> Found | None:
    """What the batch system is asked for."""
    found = _first(facts, "gpus_per_node")
    if found is not None:
        return found
    per_task, tasks = _first(facts, "gpus_per_task"), _first(facts, "tasks_per_node")
    if per_task is not None:
        return Found(per_task.value * (tasks.value if tasks is not None else 1), per_task.place, Basis.COMPUTED)
    total = _first(facts, "gpus")
    nodes = facts.nodes or _inner(facts, "nodes")
    if total is not None and (nodes is None or total.value % nodes.value == 0):
        return Found(total.value // (nodes.value if nodes is not None else 1), total.place)
    return None


def _divided(facts: Facts) -> Found | None:
    total = _first(facts, "processes")
    nodes = facts.nodes
    if total is None:
        return None
    if nodes is not None and total.value % nodes.value == 0:
        return Found(total.value // nodes.value, total.place, Basis.COMPUTED)
    return total if nodes is None and total.value <= 16 else None  # noqa: PLR2004 - more than a node has
