"""What calls of libraries give, where a program's values depend on it: configuration readers, argument parsers, the environment."""

from __future__ import annotations

import ast
import math
from collections.abc import Mapping
from posixpath import basename, dirname, join
from typing import TYPE_CHECKING, Final

from schedmate.services.code_analyzer.resolve import sequences
from schedmate.services.code_analyzer.resolve.library_arguments import (
    argument_parser,
    define_flag,
    hf_parse,
    hf_parser,
    run_function,
    typer_app,
)
from schedmate.services.code_analyzer.resolve.library_files import (
    CONFIG_KINDS,
    Rule,
    conf_cli,
    conf_create,
    conf_file,
    conf_load,
    conf_merge,
    evaluated,
    executed,
    hydra_compose,
    hydra_initialize,
    imported_module,
    ini_parser,
    opened,
    parsed_file,
)
from schedmate.services.code_analyzer.resolve.library_values import (
    attribute_got,
    attribute_set,
    attribute_there,
    copied,
    dataset_method,
    dictionary_of,
    environment_value,
    extreme,
    gpus_seen,
    in_order,
    instance_check,
    length_of,
    list_of,
    mathematics,
    names_of,
    number_of,
    of_super,
    partial_of,
    path_exists,
    path_function,
    path_of,
    process_count,
    record_of,
    replaced_fields,
    split_suffix,
    text_of,
    truth_of,
    vars_of_class,
    world_size,
    yes,
    zero,
)
from schedmate.services.code_analyzer.resolve.machine import Parser
from schedmate.services.code_analyzer.resolve.values import (
    Call,
    Scope,
    V,
)

if TYPE_CHECKING:
    from schedmate.services.code_analyzer.resolve.calls import Calls


def library_call(machine: Calls, call: Call, scope: Scope, node: ast.AST) -> V | None:
    """Return what a library's call gives where that is known; None makes it a call of the unknown."""
    del node
    last = call.name.rsplit(".", 1)[-1]
    if call.name.startswith("builtins."):
        rule = _BUILTINS.get(last) or sequences.BUILTINS.get(last)
        return rule(machine, call, scope) if rule is not None else None
    short = ".".join(call.name.split(".")[-2:])
    rule = _BY_PATH.get(call.name) or _BY_PATH.get(short) or sequences.BY_PATH.get(short) or _BY_NAME.get(last)
    if rule is not None:
        found = rule(machine, call, scope)
        if found is not None:
            return found
    if last in CONFIG_KINDS and not call.name.startswith(("torch.", "gym", "spaces")):
        return record_of(call)
    for argument in [*call.args, *call.kwargs.values()]:
        if isinstance(argument.data, Parser) and last != "Trainer":
            return argument  # `deepspeed.add_config_arguments(parser)` and its like give the parser back
    return None


_BUILTINS: Final[Mapping[str, Rule]] = {
    "int": number_of(int), "float": number_of(float), "round": mathematics(round), "abs": mathematics(abs), "str": text_of, "bool": truth_of,
    "len": length_of, "list": list_of, "tuple": list_of, "set": list_of, "sorted": in_order, "dict": dictionary_of, "min": extreme(min), "max": extreme(max),
    "sum": extreme(sum), "getattr": attribute_got, "setattr": attribute_set, "hasattr": attribute_there, "vars": names_of, "globals": names_of, "locals": names_of,
    "isinstance": instance_check, "open": opened, "exec": executed, "eval": evaluated, "super": of_super, "pow": mathematics(pow), "__import__": imported_module,
}  # fmt: skip

_BY_PATH: Final[Mapping[str, Rule]] = {
    "os.getenv": environment_value, "environ.get": environment_value, "os.path.join": path_function(join), "path.join": path_function(join),
    "path.dirname": path_function(dirname), "path.basename": path_function(basename), "path.splitext": split_suffix, "path.exists": path_exists, "path.isfile": path_exists,
    "math.ceil": mathematics(math.ceil), "math.floor": mathematics(math.floor), "math.sqrt": mathematics(math.sqrt),
    "math.prod": extreme(math.prod), "np.ceil": mathematics(math.ceil), "numpy.ceil": mathematics(math.ceil),
    "yaml.safe_load": parsed_file(".yaml"), "yaml.load": parsed_file(".yaml"), "yaml.full_load": parsed_file(".yaml"),
    "yaml.unsafe_load": parsed_file(".yaml"), "json.load": parsed_file(".json"), "json.loads": parsed_file(".json"),
    "tomllib.load": parsed_file(".toml"), "tomllib.loads": parsed_file(".toml"), "tomli.load": parsed_file(".toml"),
    "toml.load": parsed_file(".toml"), "yaml.load_all": parsed_file(".yaml"), "pyhocon.load": parsed_file(".json"),
    "OmegaConf.load": conf_load, "OmegaConf.create": conf_create, "OmegaConf.structured": conf_create, "OmegaConf.merge": conf_merge,
    "OmegaConf.unsafe_merge": conf_merge, "OmegaConf.from_cli": conf_cli, "OmegaConf.from_dotlist": conf_cli, "OmegaConf.to_container": copied,
    "OmegaConf.to_object": copied, "OmegaConf.resolve": copied, "Config.fromfile": conf_file, "Config.from_file": conf_file, "mmcv.Config.fromfile": conf_file,
    "hydra.compose": hydra_compose, "hydra.initialize": hydra_initialize, "hydra.initialize_config_dir": hydra_initialize,
    "importlib.import_module": imported_module, "ast.literal_eval": evaluated, "copy.deepcopy": copied, "copy.copy": copied,
    "dataclasses.asdict": vars_of_class, "dataclasses.replace": replaced_fields, "functools.partial": partial_of,
    "argparse.ArgumentParser": argument_parser, "configargparse.ArgumentParser": argument_parser, "typer.run": run_function,
    "fire.Fire": run_function, "app.run": run_function, "tyro.cli": run_function, "draccus.parse": run_function, "pyrallis.parse": run_function,
    "simple_parsing.parse": run_function, "chz.entrypoint": run_function, "chz.nested_entrypoint": run_function, "jsonargparse.CLI": run_function,
    "cuda.device_count": gpus_seen, "jax.local_device_count": gpus_seen, "jax.device_count": world_size, "hvd.size": world_size, "hvd.local_size": gpus_seen,
    "cuda.is_available": yes, "dist.is_available": yes, "dist.is_initialized": yes, "distributed.is_initialized": yes,
    "hvd.rank": zero, "hvd.local_rank": zero, "jax.process_index": zero, "jax.process_count": process_count,
    "configparser.ConfigParser": ini_parser, "configparser.RawConfigParser": ini_parser, "configparser.SafeConfigParser": ini_parser,
    "pathlib.Path": path_of, "cuda.set_device": zero,
}  # fmt: skip

_BY_NAME: Final[Mapping[str, Rule]] = {
    "get_world_size": world_size, "get_rank": zero, "get_local_rank": zero, "local_rank": zero, "ArgumentParser": argument_parser,
    "FlexibleArgumentParser": argument_parser, "HfArgumentParser": hf_parser, "PdArgumentParser": hf_parser, "TrlParser": hf_parser,
    "parse_args_into_dataclasses": hf_parse, "parse_json_file": hf_parse, "parse_yaml_file": hf_parse, "parse_dict": hf_parse,
    "parse_args_and_config": hf_parse, "Path": path_of, "PurePath": path_of, "select": dataset_method, "filter": dataset_method, "take": dataset_method,
    "skip": dataset_method, "shard": dataset_method, "train_test_split": dataset_method, "is_main_process": yes, "is_master": yes,
    "is_rank_zero": yes, "is_rank_0": yes, "__call__": typer_app, "DEFINE_integer": define_flag,
    "DEFINE_string": define_flag, "DEFINE_float": define_flag, "DEFINE_bool": define_flag, "DEFINE_boolean": define_flag,
    "DEFINE_enum": define_flag, "DEFINE_list": define_flag, "DEFINE_multi_string": define_flag, "DEFINE_config_file": define_flag, "DEFINE_config_dict": define_flag, "Fire": run_function, "cli": run_function, "deepcopy": copied, "partial": partial_of,
    "ConfigParser": ini_parser, "safe_load": parsed_file(".yaml"), "asdict": vars_of_class, "device_count": gpus_seen, "num_replicas": world_size,
    "import_module": imported_module, "literal_eval": evaluated, "ceil": mathematics(math.ceil), "compose": hydra_compose,
    "fromfile": conf_file, "getenv": environment_value,
}  # fmt: skip
