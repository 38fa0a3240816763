"""From a command's words to the program that it starts: wrappers and launchers unwrapped as `launchers.toml` tells, with what they say."""

# ruff: noqa: FBT003 - truth values are data here
# ruff: noqa: PLR0911 - a rule leaves as soon as it knows

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from posixpath import basename, dirname, join, normpath
from typing import Any, Final

from schedmate.services.code_analyzer.resolve.configs import load, load_text
from schedmate.services.code_analyzer.resolve.files import Files
from schedmate.services.code_analyzer.resolve.knowledge.load import knowledge
from schedmate.services.code_analyzer.resolve.ran import Arg, Ran
from schedmate.services.code_analyzer.resolve.shell import Shell
from schedmate.services.code_analyzer.resolve.shell_words import Variable
from schedmate.services.code_analyzer.resolve.values import HOLE, Place, Record, V

UNWRAP_MAX: Final = 16
LAUNCHES_MAX: Final = 200
_PYTHON: Final = re.compile(r"(?:python|pypy)(?:\d(?:\.\d+)?)?|\$\{?PYTHON\}?")
_SHELLS: Final = frozenset({"bash", "sh", "zsh", "dash", "ksh"})
_ASSIGNS: Final = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_PYTHON_VALUES: Final = frozenset({"-W", "-X", "-Q"})


@dataclass(slots=True)
class Launch:
    """A program and how it is started. `facts` holds what launchers and directives say, the outermost first."""

    place: Place
    environment: dict[str, Arg] = field(default_factory=dict)
    chain: list[str] = field(default_factory=list)
    launchers: list[tuple[str, Place]] = field(default_factory=list)
    facts: dict[str, list[V]] = field(default_factory=dict)
    options: dict[str, V] = field(default_factory=dict)
    configs: list[Arg] = field(default_factory=list)
    program: str | None = None
    module: str | None = None
    notebook: str | None = None
    command: str | None = None
    parameters: dict[str, Arg] = field(default_factory=dict)
    words: list[Arg] = field(default_factory=list)
    folder: str = ""
    certain: bool = True
    python: Place | None = None

    def say(self, key: str, value: V) -> None:
        """Note what a launcher says."""
        self.facts.setdefault(key, []).append(value)

    @property
    def name(self) -> str:
        """The program's name, for words such as `train` and `eval` in it."""
        return self.program or self.module or self.notebook or self.command or ""


def launches(ran: Ran, files: Files, facts: Mapping[str, list[V]], depth: int = 0) -> list[Launch]:
    """Return the programs that a command starts: one, or several where it runs a script."""
    launch = Launch(ran.place, dict(ran.environment), folder=ran.folder, certain=ran.certain)
    for key, values in facts.items():
        launch.facts[key] = list(values)
    return _Unwrap(launch, list(ran.words), files, depth).run()


@dataclass(slots=True)
class _Unwrap:
    launch: Launch
    words: list[Arg]
    files: Files
    depth: int

    def run(self) -> list[Launch]:
        for _ in range(UNWRAP_MAX):
            self._assignments()
            if not self.words:
                return []
            word = self.words[0].text
            name = basename(word)
            inner = self._shell(name)
            if inner is not None:
                return inner
            if _PYTHON.fullmatch(name):
                if self._python():
                    return [self.launch]
                continue
            spec, key, count = _spec(self.words)
            if spec is None:
                return self._program(word)
            self.words = self.words[count:]
            then = self._wrapper(spec, key)
            if then != "command":
                return self._target(then)
        return []

    def _assignments(self) -> None:
        while self.words and (found := _ASSIGNS.fullmatch(self.words[0].text)) and "/" not in found[1]:
            self.launch.environment[found[1]] = Arg(found[2], self.words[0].place)
            self.words.pop(0)

    def _program(self, word: str) -> list[Launch]:
        if word.endswith(".py"):
            self.launch.program = word
        elif word.endswith(".ipynb"):
            self.launch.notebook = word
        else:
            self.launch.command = basename(word)
        self.launch.python = self.words[0].place
        self.launch.words = self.words[1:]
        return [self.launch]

    # --- shells ------------------------------------------------------------------------------------------------------

    def _shell(self, name: str) -> list[Launch] | None:
        words = self.words
        if name in _SHELLS:
            flags = 1
            while flags < len(words) and words[flags].text.startswith("-") and "c" not in words[flags].text.lstrip("-"):
                flags += 1
            if flags + 1 < len(words) and words[flags].text.startswith("-"):
                return self._script(words[flags + 1].text, words[flags + 1].place, words[flags + 2 :])
            words = words[flags:]
        if name == "make":
            return self._make()
        if not words or words[0].text.endswith((".py", ".ipynb")):
            return None
        is_script = (
            name in _SHELLS or words[0].text.endswith((".sh", ".bash", ".slurm", ".sbatch")) or "/" in words[0].text
        )
        path = (
            self.files.find(words[0].text, self.launch.folder, dirname(self.launch.place.file)) if is_script else None
        )
        text = self.files.text(path) if path is not None else None
        if path is None or text is None:
            if name in _SHELLS and words:
                self.files.missing(f"{words[0].text} is not among the source")
                return []
            return None
        if name not in _SHELLS and text.startswith("#!") and "python" in text.split("\n", 1)[0]:
            return None
        return self._file(path, text, words[1:])

    def _make(self) -> list[Launch] | None:
        from schedmate.services.code_analyzer.resolve.makefile import commands  # noqa: PLC0415 - the two refer to each other

        texts = [w.text for w in self.words[1:]]
        path, folder = "Makefile", self.launch.folder
        for flag in ("-f", "-C"):
            if flag in texts[:-1]:
                at = texts.index(flag)
                if flag == "-f":
                    path = texts[at + 1]
                else:
                    folder = normpath(join(folder, texts[at + 1]))
                del texts[at : at + 2]
        found = self.files.find(path, folder)
        if found is None:
            return None
        return self._inner(commands(found, texts, self.files, self.launch.environment))

    def _script(self, script: str, place: Place, rest: list[Arg]) -> list[Launch]:
        shell = self._new_shell(rest[1:], rest[0].text if rest else place.file)
        shell.line_offset = (place.line or 1) - 1
        shell.run_text(script, place.file)
        for ran in shell.ran:  # a script in quotes stands on the lines of the command
            for n, word in enumerate(ran.words):
                if word.place.line is not None and place.line is not None and word.place.line < place.line:
                    ran.words[n] = Arg(word.text, place)
        return self._inner(shell.ran)

    def _file(self, path: str, text: str, rest: list[Arg]) -> list[Launch]:
        shell = self._new_shell(rest, path)
        for key, values in directives(text, path).items():
            self.launch.facts.setdefault(key, []).extend(values)
        shell.run_text(text, path)
        return self._inner(shell.ran)

    def _new_shell(self, positional: list[Arg], name: str) -> Shell:
        variables = {k: Variable(None if HOLE in v.text else v.text, v.place, exported=True) for k, v in self.launch.environment.items()}  # fmt: skip
        shell = Shell(self.files, variables, positional=[a.text for a in positional], folder=self.launch.folder)
        shell.file = name
        shell.depth = self.depth
        return shell

    def _inner(self, commands: list[Ran]) -> list[Launch]:
        if self.depth > 6:  # noqa: PLR2004 - scripts that start scripts that start scripts
            return []
        found: list[Launch] = []
        for ran in commands[:LAUNCHES_MAX]:
            ran.environment = {**self.launch.environment, **ran.environment}
            for launch in launches(ran, self.files, self.launch.facts, self.depth + 1):
                launch.chain = self.launch.chain + launch.chain
                launch.launchers = self.launch.launchers + launch.launchers
                launch.configs = self.launch.configs + launch.configs
                launch.options = {**self.launch.options, **launch.options}
                launch.certain = launch.certain and self.launch.certain
                found.append(launch)
        return found

    # --- Python and launchers ----------------------------------------------------------------------------------------

    def _python(self) -> bool:
        """Read `python …`; tell whether its program was reached, False when a launcher's module was."""
        place = self.words[0].place
        self.words.pop(0)
        self.launch.python = place
        while self.words and self.words[0].text.startswith("-") and self.words[0].text != "-":
            flag = self.words.pop(0).text
            if flag == "-m" and self.words:
                return self._module()
            if flag == "-c":
                self.launch.command = "python"
                self.launch.words = self.words
                return True
            if flag in _PYTHON_VALUES and self.words:
                self.words.pop(0)
        if self.words:
            self.launch.program = self.words[0].text
            self.launch.words = self.words[1:]
        return True

    def _module(self) -> bool:
        if knowledge("launchers").get(self.words[0].text) is not None:
            return False
        self.launch.module = self.words[0].text
        self.launch.words = self.words[1:]
        return True

    def _wrapper(self, spec: Mapping[str, Any], key: str) -> str:
        """Read a wrapper's options; return what follows them."""
        place = self.words[0].place if self.words else self.launch.place
        self.launch.chain.append(key)
        if "launcher" in spec:
            self.launch.launchers.append((spec["launcher"], self.launch.place))
        means, flags = spec.get("means", {}), frozenset(spec.get("flags", ()))
        pairs = frozenset(spec.get("pairs", ()))
        while self.words and self.words[0].text.startswith("-") and self.words[0].text not in ("-m", "--module"):
            word = self.words.pop(0)
            if word.text == "--":
                break
            if word.text in pairs:
                self.words = self.words[2:]
                continue
            self._option(word, means, flags)
        for _ in range(int(spec.get("operands", 0))):
            if self.words:
                self.words.pop(0)
        self.launch.place = place if self.launch.place.file != place.file else self.launch.place
        return str(spec.get("then", "command"))

    def _option(self, word: Arg, means: Mapping[str, str], flags: frozenset[str]) -> None:
        option, joined, value = word.text.partition("=")
        place = word.place
        glued = re.fullmatch(r"(-[A-Za-z])(\d+)", word.text)
        if glued is not None and glued[1] in means:
            option, joined, value = glued[1], "=", glued[2]
        meaning = means.get(option)
        if not joined and option not in flags and self.words and (meaning is not None or self._takes_value(option)):
            if meaning is not None and meaning.startswith("option:") and self.words[0].text.startswith("-"):
                value = "true"
            else:
                taken = self.words.pop(0)
                value, place = taken.text, taken.place
        if meaning is None or meaning == "skip":
            if option in flags:
                self.launch.options[option.lstrip("-").replace("-", "_")] = V(True, place)
            return
        self._mean(meaning, value, place)

    def _takes_value(self, option: str) -> bool:
        """Guess for an option that is not listed: the next word is its value unless it looks like a program."""
        following = self.words[0].text
        if following.startswith("-") or following.endswith((".py", ".sh", ".ipynb")):
            return False
        if _PYTHON.fullmatch(basename(following)) or following in _SHELLS or _spec(self.words)[0] is not None:
            return False
        return option.startswith("--") or len(option) == 2  # noqa: PLR2004 - `-x`

    def _mean(self, meaning: str, value: str, place: Place) -> None:  # noqa: C901 - cases of one kind, one after another
        launch = self.launch
        if meaning.startswith("option:"):
            launch.options[meaning[7:]] = V(value or "true", place)
        elif meaning == "config":
            launch.configs.append(Arg(value, place))
        elif meaning == "environment":
            name, joined, text = value.partition("=")
            if joined:
                launch.environment[name] = Arg(text, place)
        elif meaning == "env_file":
            launch.environment.update(env_file(value, self.files, launch.folder))
        elif meaning == "runtime_env":
            self._runtime(value, place)
        elif meaning == "docker_gpus":
            devices = re.search(r"device=([\d,]+)", value)
            launch.say("visible" if devices else "gpus_per_node", V(devices[1] if devices else value, place))
        elif meaning == "map_by":
            per_node = re.search(r"ppr:(\d+):node", value)
            if per_node is not None:
                launch.say("processes_per_node", V(per_node[1], place))
        elif meaning != "folder":
            launch.say(meaning, V(value, place))

    def _runtime(self, value: str, place: Place) -> None:
        from schedmate.services.code_analyzer.resolve.configs import load, load_text  # noqa: PLC0415 - only here

        record = (
            load_text(value, place.file)
            if value.lstrip().startswith("{")
            else load(value, self.files, self.launch.folder)
        )
        variables = record.get("env_vars") if record is not None else None
        if variables is not None and hasattr(variables.data, "entries"):
            for name, inner in variables.data.entries.items():
                self.launch.environment[str(name)] = Arg(str(inner.data), inner.place or place)

    def _target(self, then: str) -> list[Launch]:
        launch = self.launch
        if not self.words:
            return []
        if then == "notebook":
            return self._notebook()
        if then == "recipe":
            launch.command = "tune"
            launch.words = self.words
            return [launch]
        if self.words[0].text in ("-m", "--module"):
            launch.module = self.words[1].text if len(self.words) > 1 else None
            launch.words = self.words[2:]
        elif _PYTHON.fullmatch(basename(self.words[0].text)):
            self._python()
        elif self.words[0].text.endswith(".py") or "/" in self.words[0].text or "." in self.words[0].text:
            launch.program, launch.words = self.words[0].text, self.words[1:]
        else:
            launch.command, launch.words = self.words[0].text, self.words[1:]
        launch.python = launch.python or self.words[0].place
        return [launch]

    def _notebook(self) -> list[Launch]:
        launch = self.launch
        books = [w for w in self.words if w.text.endswith(".ipynb")]
        if not books:
            return []
        launch.notebook = books[0].text
        for n, word in enumerate(self.words[:-1]):
            if word.text in ("-f", "--parameters_file"):
                self._parameters(load(self.words[n + 1].text, self.files, launch.folder))
            elif word.text in ("-y", "--parameters_yaml"):
                self._parameters(load_text(self.words[n + 1].text, "command"))
        for n, word in enumerate(self.words[:-2]):
            if word.text in ("-p", "--parameters", "-r", "--parameters_raw"):
                launch.parameters[self.words[n + 1].text] = self.words[n + 2]
        for word in self.words:
            if word.text.startswith("--to") or word.text == "script":
                continue
        launch.words = []
        return [launch]

    def _parameters(self, record: Record | None) -> None:
        """Take a notebook's parameters from a file; those on the command line come after them."""
        for name, value in (record.entries if record is not None else {}).items():
            if isinstance(value.data, (str, int, float)) and value.place is not None:
                self.launch.parameters[str(name)] = Arg(str(value.data), value.place)


def _spec(words: list[Arg]) -> tuple[Mapping[str, Any] | None, str, int]:
    """Return how the command that the words begin with is read, its name, and how many words that takes."""
    known = knowledge("launchers")
    first = basename(words[0].text) if "." not in words[0].text else words[0].text
    for count in (3, 2, 1):
        key = " ".join([first, *(w.text for w in words[1:count])])
        if len(words) >= count and key in known:
            spec = known[key]
            if "like" in spec:
                spec = {**known[spec["like"]], **spec}
            return spec, key, count
    return None, first, 0


def env_file(path: str, files: Files, folder: str = "") -> dict[str, Arg]:
    """Return the variables of an env file."""
    found = files.find(path, folder)
    text = files.text(found) if found is not None else None
    variables: dict[str, Arg] = {}
    for number, line in enumerate((text or "").splitlines(), start=1):
        match = re.fullmatch(r"\s*(?:export\s+)?([A-Za-z_]\w*)\s*=\s*(.*?)\s*", line)
        if match is not None and found is not None:
            value = match[2].split(" #", 1)[0].strip()
            variables[match[1]] = Arg(value.strip("\"'"), files.place(found, number))
    return variables


_SLURM: Final = {"nodes": "nodes", "N": "nodes", "gpus-per-node": "gpus_per_node", "gres": "gpus_per_node", "ntasks-per-node": "tasks_per_node", "gpus-per-task": "gpus_per_task", "gpus": "gpus", "G": "gpus", "ntasks": "processes", "n": "processes", "tasks-per-node": "tasks_per_node"}  # fmt: skip


def directives(text: str, file: str) -> dict[str, list[V]]:  # noqa: C901 - cases of one kind, one after another
    """Return what a batch script's directives (`#SBATCH`, `#PBS`, `#BSUB`, `#$`) ask for."""
    facts: dict[str, list[V]] = {}
    for number, line in enumerate(text.splitlines()[:400], start=1):
        place = Place(file, number)
        if line.startswith("#SBATCH"):
            for key, value in _slurm_options(line[7:]):
                meaning = _SLURM.get(key)
                if meaning is not None:
                    facts.setdefault(meaning, []).append(V(value, place))
        elif line.startswith("#PBS"):
            for pattern, meaning in ((r"(?:select|nodes)=(\d+)", "nodes"), (r"n?gpus=(\d+)", "gpus_per_node"), (r"mpiprocs=(\d+)", "tasks_per_node")):  # fmt: skip
                found = re.search(pattern, line)
                if found is not None:
                    facts.setdefault(meaning, []).append(V(found[1], place))
        elif line.startswith("#BSUB"):
            found = re.search(r"-gpu\s+\"?num=(\d+)", line)
            if found is not None:
                facts.setdefault("gpus_per_node", []).append(V(found[1], place))
            found = re.search(r"-nnodes\s+(\d+)", line)
            if found is not None:
                facts.setdefault("nodes", []).append(V(found[1], place))
        elif line.startswith("#$"):
            found = re.search(r"-l\s+\S*gpus?=(\d+)", line)
            if found is not None:
                facts.setdefault("gpus_per_node", []).append(V(found[1], place))
    return facts


def _slurm_options(text: str) -> list[tuple[str, str]]:
    try:
        words = shlex.split(text, comments=True)
    except ValueError:
        words = text.split()
    options: list[tuple[str, str]] = []
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        if not word.startswith("-"):
            continue
        name, joined, value = word.lstrip("-").partition("=")
        if not word.startswith("--") and len(name) > 1:
            name, joined, value = name[0], "=", name[1:] + value
        if not joined and at < len(words) and not words[at].startswith("-"):
            value = words[at]
            at += 1
        options.append((name, value))
    return options


def slurm_environment(facts: Mapping[str, list[V]]) -> dict[str, Variable]:
    """Return the variables that Slurm sets for a job whose directives are known."""
    nodes, tasks, gpus = (_count(facts, key) for key in ("nodes", "tasks_per_node", "gpus_per_node"))
    processes = _count(facts, "processes")
    given: dict[str, tuple[int, Place | None] | None] = {"SLURM_NNODES": nodes, "SLURM_JOB_NUM_NODES": nodes}
    given["SLURM_NTASKS_PER_NODE"] = given["SLURM_TASKS_PER_NODE"] = tasks
    given["SLURM_GPUS_ON_NODE"] = given["SLURM_GPUS_PER_NODE"] = gpus
    given["SLURM_NTASKS"] = processes
    if processes is None and nodes is not None and tasks is not None:
        given["SLURM_NTASKS"] = (nodes[0] * tasks[0], tasks[1])
    given["SLURM_NPROCS"] = given["SLURM_NTASKS"]
    return {
        name: Variable(str(value[0]), value[1], exported=True) for name, value in given.items() if value is not None
    }


def _count(facts: Mapping[str, list[V]], key: str) -> tuple[int, Place | None] | None:
    for value in reversed(facts.get(key, [])):
        found = re.search(r"(\d+)$", str(value.data).split("(")[0])
        if found is not None and (
            key != "gpus_per_node" or "gpu" in str(value.data) or ":" in str(value.data) or str(value.data).isdigit()
        ):
            return int(found[1]), value.place
    return None
