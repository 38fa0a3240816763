"""How many samples a data set has and how often a loop over it turns, where the program itself tells or the data set is well known."""

from __future__ import annotations

import math
import re
from typing import Any, Final

from schedmate.schemas.events import Basis
from schedmate.services.code_analyzer.resolve.expressions import Expressions
from schedmate.services.code_analyzer.resolve.knowledge.load import knowledge
from schedmate.services.code_analyzer.resolve.values import UNKNOWN, Call, External, Function, Instance, Record, V

_LOADERS: Final = re.compile(
    r"(?:^|\.)(?:\w*DataLoader|Prefetcher|prepare_data_loader|get_dataloader|ParallelLoader|MpDeviceLoader)$"
)
DEPTH_MAX: Final = 10


def length(machine: Expressions, value: V, depth: int = 0) -> V | None:
    """Return how many elements a value has, None where that is not known."""
    data = value.data
    if isinstance(data, (list, tuple, str)) and value.known:
        return V(len(data), value.place, Basis.COMPUTED)
    if isinstance(data, Record) and not data.open:
        return V(len(data.entries), value.place, Basis.COMPUTED)
    if isinstance(data, Instance):
        found = machine.of_class(data.of, "__len__")
        if found is not None and isinstance(found.data, Function):
            inner = Function("__len__", found.data.node, found.data.scope, found.data.owner, value)
            result = machine.call(V(inner), [], {}, found.data.scope, found.data.node)
            return result if isinstance(result.data, int) else None
        return None
    if isinstance(data, Call) and depth < DEPTH_MAX:
        return _of_call(machine, data, depth)
    return None


def _of_call(machine: Expressions, call: Call, depth: int) -> V | None:
    given = call.attributes.get("__len__")
    if given is not None:
        return given if given.known else None
    last = call.name.rsplit(".", 1)[-1]
    if _LOADERS.search(call.name):
        return _loader(machine, call, depth)
    if last == "Subset" and len(call.args) > 1:
        return length(machine, call.args[1], depth + 1)
    if last == "range" and call.args and isinstance(call.args[-1].data, int) and len(call.args) == 1:
        return call.args[0]
    if last in ("tqdm", "track", "enumerate", "prepared", "islice") and call.args:
        return length(machine, call.args[0], depth + 1)
    return well_known(call)


def _loader(machine: Expressions, call: Call, depth: int) -> V | None:
    source = call.argument(0, "dataset")
    samples = length(machine, source, depth + 1) if source is not None else None
    size = call.argument(1, "batch_size")
    if samples is None or not isinstance(samples.data, int):
        return None
    batch = 1 if size is None else size.data
    if not isinstance(batch, int) or batch <= 0:
        return None
    parts: Any = 1
    sampler = call.kwargs.get("sampler")
    if (
        _is_distributed(sampler)
        or call.attributes.get("__sharded__") is not None
        or call.name.endswith("prepare_data_loader")
    ):
        parts = machine.world.data
    if not isinstance(parts, int) or parts < 1:
        return None
    drop = call.kwargs.get("drop_last")
    own = math.ceil(samples.data / parts)
    count = own // batch if drop is not None and drop.data is True else math.ceil(own / batch)
    return V(count, call.place, Basis.COMPUTED)


def _is_distributed(sampler: V | None) -> bool:
    data = sampler.data if sampler is not None else None
    return isinstance(data, (Call, External)) and "Distributed" in data.name


def well_known(call: Call) -> V | None:
    """Return the number of training samples of a data set that a library loads by its name."""
    last = call.name.rsplit(".", 1)[-1]
    key = call.attributes.get("__key__")
    table = knowledge("datasets")["sizes"]
    if last == "load_dataset":
        name = call.argument(0, "path")
        split = call.kwargs.get("split", key)
        text = str(name.data).lower() if name is not None and isinstance(name.data, str) else ""
        config = call.argument(1, "name")
        if config is not None and isinstance(config.data, str):
            text = f"{text}/{config.data.lower()}" if f"{text}/{config.data.lower()}" in table else text
        sizes = table.get(text) or table.get(text.rsplit("/", 1)[-1])
        wanted = str(split.data) if split is not None and isinstance(split.data, str) else None
        if sizes is None or wanted is None:
            return None
        part = re.fullmatch(r"(\w+)(?:\[:(\d+)(%?)\])?", wanted)
        if part is None or part[1] not in sizes:
            return None
        count = sizes[part[1]]
        if part[2]:
            count = count * int(part[2]) // 100 if part[3] else min(count, int(part[2]))
        return V(count, call.place, Basis.COMPUTED)
    year = call.kwargs.get("year")
    dated = f"{last.lower()}{year.data}" if year is not None and isinstance(year.data, str) else last.lower()
    sizes = table.get(dated)
    if sizes is None or not ("torchvision" in call.name or "datasets" in call.name or last[:1].isupper()):
        return None
    train = call.argument(1, "train")
    split_name = call.kwargs.get("split", call.kwargs.get("image_set"))
    part_name = "train" if train is None or train.data is not False else "test"
    if split_name is not None and isinstance(split_name.data, str):
        part_name = split_name.data
    return V(sizes[part_name], call.place, Basis.COMPUTED) if part_name in sizes else None


def changed(machine: Expressions, name: str, of: Call, args: list[V], kwargs: dict[str, V]) -> V | None:
    """Return the length of a data set after one of its methods, None where it is not known."""
    if name == "select" and (args or "indices" in kwargs):
        chosen = args[0] if args else kwargs["indices"]
        return length(machine, chosen)
    if name in ("filter", "train_test_split", "batch", "flat_map", "skip", "take", "shard"):
        if name == "take" and args and isinstance(args[0].data, int):
            return args[0]
        return V(UNKNOWN)
    if name == "map" and (kwargs.get("remove_columns") is not None and kwargs.get("batched") is not None):
        return V(UNKNOWN)  # packing changes the number of samples
    return of.attributes.get("__len__") or well_known(of)
