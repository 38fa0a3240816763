"""Which model is trained, of which family, how large, on which data and for what."""

from __future__ import annotations

import re
from functools import cache
from typing import Any, Final

from schedmate.schemas.events import Basis
from schedmate.services.code_analyzer.resolve.facts import (
    CONFIGURED,
    Facts,
    Found,
    Setting,
    as_number,
    letters,
    text_of,
)
from schedmate.services.code_analyzer.resolve.knowledge.load import knowledge
from schedmate.services.code_analyzer.resolve.values import External, Place, Record, V

_SIZE: Final = re.compile(r"(?<![a-zA-Z0-9.])(\d{1,4}(?:[._]\d{1,2})?)\s?([bBmM])(?![a-zA-Z0-9])")
_MAKERS: Final = re.compile(
    r"from_pretrained$|from_config$|create_model$|SentenceTransformer$|torch\.hub\.load$|(^|\.)YOLO$|load_model$|get_model$|\.LLM$|snapshot_download$|CrossEncoder$|pipeline$|InferenceClient$|get_network_fn$"
)
_TOKENIZER: Final = re.compile(
    r"Tokenizer|Processor|FeatureExtractor|GenerationConfig|load_dataset|Scheduler|TextStreamer"
)
_GENERAL_TASKS: Final = ("image_classification", "masked_lm", "sentence_embedding", "speech_recognition")
"""Tasks of families that are used for much else: what the data says goes before them."""
SMALLEST_SIZE_M: Final = 10
"""Millions of parameters: `1m` in a name is no model's size."""
NAME_MAX: Final = 80
_AGREES: Final = 0.35
"""How far a size in a name may be from what the dimensions make: names are rounded, embeddings are counted or not."""
_GENERIC: Final = frozenset(
    {
        "hf",
        "huggingface",
        "model",
        "auto",
        "default",
        "none",
        "true",
        "false",
        "custom",
        "pytorch",
        "causallm",
        "text",
        "small",
        "base",
        "large",
        "tiny",
        "medium",
        "det",
        "rec",
        "cls",
        "local",
        "vllm",
        "audio",
        "full",
        "trainer",
        "adamw",
        "test",
    }
)
_MODULES: Final = re.compile(
    r"(^|\.)(nn\.Module|Module|LightningModule|Model|PreTrainedModel|Layer|GPTModel)$|LightningModule|PreTrainedModel|keras\.Model"
)
_PARTS: Final = re.compile(
    r"(block|layer|head|attention|attn|embedding|norm|loss|dataset|loader|sampler|config|transform|tokenizer|conv\d?d?|stage|encoderlayer|mlp$|buffer|optimizer|scheduler|callback|collator|critic|qnetwork|^q\w*net|args|data|metric|module$|logger)",
    re.IGNORECASE,
)
_TRAIN_PART: Final = re.compile(
    r"^(train(ing)?|images?|data|raw|processed|jpg|all|full|shards|text|train\.(json|jsonl|csv|txt|parquet|bin|h5)|text_localization|manifests?)$",
    re.IGNORECASE,
)


@cache
def _families() -> list[tuple[re.Pattern[str], str]]:
    return [(re.compile(pattern), name) for pattern, name in knowledge("models")["families"]]


def family_of(name: str) -> str | None:
    """Return the family that a model's name speaks of."""
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", name)
    for text in (
        name.lower().rsplit("/", 1)[-1].replace("_", "-"),
        spaced.lower().replace("_", "-"),
        name.lower().replace("_", "-"),
    ):
        for pattern, family in _families():
            found = pattern.search(text)
            if found is not None:
                version = re.search(r"v\d+|\d+", found[0]) if family == "yolo" else None
                return f"yolo{version[0]}" if version is not None else family
    return None


def parameters_of(name: str) -> float | None:
    """Return how many parameters a model of this name has: by a size in the name, else because it is well known."""
    table: dict[str, float] = knowledge("models")["params"]
    last = re.sub(r"\.(pt|pth|ckpt|safetensors|yaml)$", "", name.rstrip("/").rsplit("/", 1)[-1])
    bare = letters(last)
    if bare in table:
        return float(table[bare])
    sized = [
        m
        for m in _SIZE.finditer(re.sub(r"[-_]", " ", last))
        if m[2] in "bB" or float(m[1].replace("_", ".")) >= SMALLEST_SIZE_M
    ]
    if sized:
        number = float(sized[0][1].replace("_", "."))
        return number * (1e9 if sized[0][2] in "bB" else 1e6)
    for known in sorted(table, key=len, reverse=True):
        if len(known) > 6 and bare.startswith(known) and not re.match(r"\d", bare[len(known) :]) or _vit(bare) == known:  # noqa: PLR2004, RUF021 - short names are words of others
            return float(table[known])
    return None


def _vit(bare: str) -> str | None:
    found = re.match(r"(vit|deit|swin|beit|maevit|convnext)(tiny|small|base|large|huge|xlarge)", bare)
    return found[0] if found is not None else None


class Models:
    """Answers for the fields about model, data and purpose."""

    def __init__(self, facts: Facts) -> None:
        self.facts = facts
        self.framework = facts.framework
        self.meta: str | None = None
        self.name = self._name()

    # --- the model's name --------------------------------------------------------------------------------------------

    def _name(self) -> Found | None:
        rules = (
            self._loaded,
            self._path,
            self._composed,
            self._built,
            self._named,
            self._class,
            self._shaped,
            self._hinted,
        )
        for rule in rules:
            found = rule()
            if found is not None:
                return found
        return None

    def _loaded(self) -> Found | None:
        """The name that the program loads or builds its model by."""
        candidates: list[tuple[int, Found]] = []
        for call in self.facts.events:
            if _TOKENIZER.search(call.name) or not _MAKERS.search(call.name):
                continue
            value = call.argument(
                0, "pretrained_model_name_or_path", "model_name", "model", "model_name_or_path", "name", "model_id"
            )
            if call.name.endswith("hub.load") and len(call.args) > 1:
                value = call.args[1]
            name = text_of(value.data) if value is not None else None
            if name is None or value is None or len(name) > 200 or (name.lower() in _GENERIC):  # noqa: PLR2004 - no name is longer
                continue
            part = re.search(r"Config|AutoencoderKL|TextEncoder|VAE|Reward|Ref", call.name + call.text) is not None
            candidates.append(
                (
                    (0 if call.certain else 2) + (1 if part else 0),
                    Found(_stem(name), value.place or call.place, value.basis, 0.95),
                )
            )
        return min(candidates, key=lambda c: c[0])[1] if candidates else None

    def _path(self) -> Found | None:
        """The name that flags and configurations give for a pretrained model."""
        for setting in self.facts.of("model_path"):
            name = text_of(setting.data)
            if name is not None and name.lower() not in _GENERIC and not self._overridden(setting):
                return Found(_stem(name), setting.value.place, setting.value.basis, 0.95)
        setting_args = next(
            (s for s in self.facts.settings if s.path == "model_args" and isinstance(s.data, str)), None
        )
        found = re.search(r"pretrained=([^,\s]+)", str(setting_args.data)) if setting_args is not None else None
        return Found(found[1], setting_args.value.place) if found is not None and setting_args is not None else None

    @staticmethod
    def _overridden(setting: Setting) -> bool:
        return bool(re.search(r"teacher|ref_|reward|critic|draft|tokenizer", setting.path.lower()))

    def _composed(self) -> Found | None:
        """Detection models of configurations: a meta-architecture with its backbone."""
        for record in self.facts.configs:
            meta = record.get("MODEL.META_ARCHITECTURE") or record.get("Architecture.algorithm")
            if meta is not None and isinstance(meta.data, str):
                backbone = record.get("MODEL.BACKBONE.NAME") or record.get("Architecture.Backbone.name")
                size = (
                    record.get("MODEL.SWIN.SIZE")
                    or record.get("MODEL.RESNETS.DEPTH")
                    or record.get("Architecture.Backbone.model_name")
                )
                self.meta = family_of(meta.data)
                return Found(
                    "_".join([meta.data, *_short_backbone(backbone, size, record)]), meta.place, meta.basis, 0.8
                )
            generic = self._of_head(record)
            if generic is not None:
                return generic
            kind = record.get("model.type")
            if kind is not None and isinstance(kind.data, str) and record.get("model.backbone.type") is not None:
                return Found(
                    "_".join([family_of(kind.data) or kind.data, *_mm_backbone(record)]), kind.place, kind.basis, 0.8
                )
        return None

    def _of_head(self, record: Record) -> Found | None:
        """A model whose type is general (`EncoderDecoder`): by its head, and the configuration's own name."""
        kind, head = record.get("model.type"), record.get("model.decode_head.type") or record.get("model.head.type")
        if kind is None or kind.data not in ("EncoderDecoder", "CascadeEncoderDecoder", "ImageClassifier"):
            return None
        words = [w.text for w in self.facts.launch.words if re.search(r"\.(py|ya?ml)$", w.text)]
        stem = words[0].rsplit("/", 1)[-1].rsplit(".", 1)[0] if words else ""
        name = re.split(r"_\d+xb|_\d+x\d|_\d+k|_\d+x_", stem)[0]
        self.meta = family_of(stem) or (family_of(str(head.data).removesuffix("Head")) if head is not None else None)
        return Found(name, kind.place, Basis.INFERRED, 0.7) if self.meta is not None and name else None

    def _sized(self, setting: Setting, name: str) -> str:
        """Add the size that stands beside a name: `name = "llama3"`, `flavor = "8B"`."""
        parent = setting.path.rpartition(".")[0]
        for key in ("flavor", "size", "variant"):
            beside = next((s for s in self.facts.settings if s.path == f"{parent}.{key}" and text_of(s.data)), None)
            if (
                beside is not None
                and parent
                and re.fullmatch(r"\d+(\.\d+)?[bBmM]", beside.data)
                and parameters_of(name) is None
            ):
                return f"{name}-{beside.data}"
        return name

    def _built(self) -> Found | None:
        """The well-known constructor that builds the model."""
        for call in [*self.facts.models, *self.facts.events]:
            if not call.certain or not re.search(r"torchvision\.models\.(?!__)|keras\.applications\.|monai\.networks\.nets\.|segmentation_models|transformers\.\w*(Model|For\w+)$|efficientnet_pytorch|stable_baselines3\.\w+$|sb3_contrib", call.name):  # fmt: skip
                continue
            last = call.name.rsplit(".", 1)[-1]
            if (
                last[:1].isalpha()
                and last not in ("models", "preprocess_input")
                and not last.startswith(("load", "from_"))
                and "preprocess" not in last
            ):
                if "stable_baselines3" in call.name and not last.isupper():
                    continue
                return Found(last, call.place, Basis.EXPLICIT, 0.9)
        return None

    def _named(self) -> Found | None:
        """The name that flags, configurations or the arguments of the model's factory give."""
        mine = [s for s in self.facts.of("model_name") if s.rank <= CONFIGURED or s.certain]
        for setting in mine:
            name = text_of(setting.data)
            if name is None or name.lower() in _GENERIC or len(name) > 120 or "\n" in name:  # noqa: PLR2004 - no name is longer
                continue
            last = (
                name.rsplit(".", 1)[-1]
                if "._" not in name and setting.path.endswith(("_target_", "class_path", "_component_"))
                else _stem(name)
            )
            task = str(self.framework.table.get("task")) if self.framework is not None else ""
            if "algo" in setting.path and task == "reinforcement_learning":
                policy = next((s for s in self.facts.settings if s.path.endswith("policy") and text_of(s.data)), None)
                if policy is not None:
                    return Found(policy.data, policy.value.place)
            if family_of(last) is not None or parameters_of(last) is not None:
                own = self._own_class(last)
                return own or Found(self._sized(setting, last), setting.value.place, setting.value.basis, 0.9)
        for call in self.facts.models:
            for argument in [*call.args, *call.kwargs.values()]:
                name = text_of(argument.data)
                if isinstance(argument.data, External) and not argument.data.name.startswith("?"):
                    name = argument.data.name.rsplit(".", 1)[-1]
                if name is not None and len(name) < 80 and family_of(name) is not None:  # noqa: PLR2004 - no name is longer
                    return self._own_class(name) or Found(
                        _stem(name), argument.place or call.place, argument.basis, 0.85
                    )
        first = next((s for s in mine if s.path.endswith(("_target_", "class_path")) and text_of(s.data)), None)
        return Found(first.data.rsplit(".", 1)[-1], first.value.place) if first is not None else None

    def _own_class(self, name: str) -> Found | None:
        """The program's own class, where the name only picks it from a table."""
        for instance, place in self.facts.created:
            if letters(instance.of.name) == letters(name) and any(_is_module(b) for b in instance.of.bases):
                return Found(instance.of.name, place)
        return None

    def _class(self) -> Found | None:
        """The program's own model class, the last of its kind that is no mere part."""
        candidates = [
            (instance.of.name, place) for instance, place in self.facts.created
            if not _PARTS.search(instance.of.name) and any(_is_module(b) for b in instance.of.bases)
        ]  # fmt: skip
        known = [c for c in candidates if family_of(c[0]) is not None]
        script = (self.facts.launch.program or "").rsplit("/", 1)[-1].removesuffix(".py")
        if not known and candidates and family_of(script) is not None:
            return Found(script, self.facts.launch.place, Basis.INFERRED, 0.6)
        if known or candidates:
            name, place = (known or candidates)[0]
            return self._shape_named(name, place) or Found(name, place, Basis.EXPLICIT, 0.8)
        sequential = self.facts.call(r"(^|\.)(Sequential)$")
        if sequential is not None and not self.facts.models:
            sequential = None
        return self._layers() if sequential is not None else None

    def _layers(self) -> Found | None:
        """A model that is built of layers: by the recurrent or attention layer in it."""
        for pattern, name in (
            (r"\.(LSTM|Bidirectional)$", "lstm"),
            (r"\.GRU$", "gru"),
            (r"MultiHeadAttention|TransformerEncoder", "transformer"),
            (r"\.Conv[12]D$|\.Conv[12]d$", "cnn"),
        ):
            call = self.facts.call(pattern)
            if call is not None:
                return Found(name, call.place, Basis.INFERRED, 0.7)
        call = self.facts.call(r"\.(Dense|Linear)$")
        return Found("mlp", call.place, Basis.INFERRED, 0.6) if call is not None else None

    def _dimensions(self) -> tuple[int, int, int, Place | None] | None:
        numbers = [self.facts.number(m) for m in ("layers", "hidden", "heads")]
        if any(n is None for n in numbers):
            return None
        first = numbers[0]
        layers, hidden, heads = (int(n.data) for n in numbers if n is not None)
        return layers, hidden, heads, first.value.place if first is not None else None

    def _shape_named(self, name: str, place: Place | None) -> Found | None:
        """A model whose dimensions are those of a well-known one: 24 layers of 1024 make a GPT the medium GPT-2."""
        shape, family = self._dimensions(), family_of(name)
        if shape is None or family is None:
            return None
        for known in knowledge("models")["shape"]:
            if known["family"] in (family, "gpt" if family == "gpt2" else family) and known["of"] == [
                *shape[:2],
                shape[2],
            ]:
                return Found(known["name"], shape[3] or place, Basis.INFERRED, 0.75)
        return None

    def _shaped(self) -> Found | None:
        """A factory of a library whose name speaks of a family, with dimensions or a size that are well known."""
        for call in self.facts.models:
            family = family_of(call.name)
            if family is None:
                continue
            named = self._shape_named(call.name, call.place)
            if named is not None:
                return named
            size = next((w for w in re.split(r"[._]", call.name) if w in knowledge("models")["sizes"]["words"]), None)
            if size is not None:
                return Found(f"{family}-{size}", call.place, Basis.INFERRED, 0.75)
            last = call.name.rsplit(".", 1)[-1]
            return Found(last if family_of(last) is not None else family, call.place, Basis.INFERRED, 0.6)
        return None

    def _hinted(self) -> Found | None:
        """A name that the job mentions (a path, a run's name, a comment at the launch), when the model's dimensions agree with it."""
        estimated = self._estimated()
        if estimated is not None:
            for text, place in self.facts.mentions:
                size = parameters_of(text)
                if size is not None and family_of(text) is not None and abs(size - estimated) <= _AGREES * size:
                    return Found(text, place, Basis.INFERRED, 0.7)
        gin = next((s for s in self.facts.settings if s.path == "include" and isinstance(s.data, list)), None)
        for word in reversed(gin.data if gin is not None else []):
            path = re.sub(r"\.gin$", "", str(word.data)) if isinstance(word, V) else ""
            parts = [p for p in path.split("/") if p not in ("examples", "configs", "t5x", "runs")]
            if len(parts) > 1 and family_of("/".join(parts[:-1])) is not None:
                return Found("_".join(parts[-2:]), word.place, Basis.INFERRED, 0.7)
        for setting in (
            s for s in self.facts.settings if s.path in ("config-name", "config_name", "name") and text_of(s.data)
        ):
            if family_of(setting.data) is not None:
                return Found(setting.data, setting.value.place, Basis.INFERRED, 0.6)
        return None

    def _estimated(self) -> float | None:
        """Return the parameters that a decoder's dimensions make (attention and feed-forward weights, embeddings)."""
        shape = self._dimensions()
        if shape is None:
            return None
        layers, hidden, heads, _ = shape
        kv, ffn, vocab = (self.facts.number(m) for m in ("kv_heads", "ffn", "vocab"))
        gated = self.facts.true("swiglu") is not None
        share = (int(kv.data) / heads) if kv is not None and heads else 1.0
        inner = int(ffn.data) if ffn is not None else 4 * hidden
        block = hidden * hidden * (2 + 2 * share) + (3 if gated else 2) * hidden * inner
        return layers * block + (int(vocab.data) if vocab is not None else 32_000) * hidden

    # --- what follows from the name ----------------------------------------------------------------------------------

    def family(self) -> Found | None:
        """The model's family."""
        table = self.framework.table if self.framework is not None else {}
        if table.get("task") == "reinforcement_learning" or self._is_rl():
            algorithm = next(
                (
                    s
                    for s in self.facts.settings
                    if s.path.rsplit(".", 1)[-1] in ("algo", "algorithm", "exp_name")
                    and text_of(s.data)
                    and family_of(s.data)
                ),
                None,
            )
            if algorithm is not None:
                return Found(family_of(algorithm.data), algorithm.value.place)
        if self.name is None:
            return None
        if "model_family" in table and self.framework is not None:
            return Found(table["model_family"], self.framework.place)
        family = self.meta or family_of(str(self.name.value))
        if family is None:
            family = self._family_of_class()
        return Found(family, self.name.place, self.name.basis, self.name.confidence) if family is not None else None

    def _family_of_class(self) -> str | None:
        for text, _ in self.facts.mentions:
            if family_of(text) is not None and letters(text) == letters(str(self.name.value if self.name else "")):
                return family_of(text)
        return None

    def _is_rl(self) -> bool:
        return any(
            i.split(".")[0]
            in ("gymnasium", "gym", "stable_baselines3", "sb3_contrib", "tianshou", "pettingzoo", "cleanrl")
            for i in self.facts.imports
        )

    def parameters(self) -> Found | None:
        """The number of the model's parameters, from its name."""
        if self.name is None:
            return None
        family = family_of(str(self.name.value))
        if family in ("stable_diffusion", "flux", "diffusion"):
            return None
        number = (
            parameters_of(f"{self.name.value}-{family_.value}")
            if (family_ := self.family()) is not None
            and letters(f"{self.name.value}{family_.value}") in knowledge("models")["params"]
            else parameters_of(str(self.name.value))
        )
        return (
            Found(number, self.name.place, Basis.INFERRED, 0.85)
            if number is not None
            else self._by_variant() or self._by_mention()
        )

    def _by_mention(self) -> Found | None:
        """A size that the job's paths mention (`yamls/mpt-1b.yaml`), when the model's dimensions agree with it."""
        estimated, family = self._estimated(), self.family()
        for text, place in self.facts.mentions if estimated is not None and family is not None else ():
            size = parameters_of(text)
            if (
                size is not None
                and family is not None
                and family_of(text) == family.value
                and abs(size - (estimated or 0)) <= _AGREES * size
            ):
                return Found(size, place, Basis.INFERRED, 0.7)
        return None

    def _by_variant(self) -> Found | None:
        variant = next(
            (
                s
                for s in self.facts.settings
                if s.path.rsplit(".", 1)[-1] in ("variant", "size", "arch") and text_of(s.data)
            ),
            None,
        )
        if variant is None or self.name is None:
            return None
        number = knowledge("models")["params"].get(letters(f"{self.name.value}{variant.data}"))
        return Found(float(number), variant.value.place, Basis.INFERRED, 0.8) if number is not None else None

    # --- data and purpose --------------------------------------------------------------------------------------------

    def dataset(self) -> Found | None:
        """The data set, by the name it is loaded under, else by where it lies."""
        found = self._loaded_data()
        candidates = [found] if found is not None else []
        candidates += self._given_data()
        part = next((s for s in self.facts.settings if s.path == "task_name" and text_of(s.data)), None)
        if part is not None and f"glue/{part.data}" in knowledge("datasets")["sizes"]:
            candidates.append(Found(part.data, part.value.place))
        named = [c for c in candidates if _known_dataset(str(c.value)) is not None or "/" not in str(c.value)]
        if found is not None and not str(found.value).startswith(("/", ".", "~")):
            return found
        best = candidates[0] if candidates else None
        if (
            best is not None
            and str(best.value).startswith(("/", ".", "~"))
            and _known_dataset(str(best.value)) is None
            and named
        ):
            best = named[0]
        return (
            Found(_dataset_name(str(best.value)), best.place, best.basis, best.confidence) if best is not None else None
        )

    def _loaded_data(self) -> Found | None:
        calls = sorted(self.facts.events, key=lambda c: (not c.certain, bool(re.search(r"val|test|eval", c.text))))
        for call in calls:
            last = call.name.rsplit(".", 1)[-1]
            if last in ("load_dataset", "load_from_disk", "load", "image_dataset_from_directory", "ImageFolder", "read_csv", "builder") and (last != "load" or "tfds" in call.name or "tensorflow_datasets" in call.name):  # fmt: skip
                value = call.argument(0, "path", "name", "directory", "root")
                name = text_of(value.data) if value is not None else None
                if (
                    name is not None
                    and name in ("json", "csv", "parquet", "text", "imagefolder", "webdataset")
                    and last == "load_dataset"
                ):
                    value = call.kwargs.get("data_files", call.kwargs.get("data_dir"))
                    name = text_of(value.data) if value is not None else None
                if name is not None and value is not None:
                    return Found(name, value.place or call.place, value.basis, 0.95)
            elif (
                re.search(
                    r"(torchvision|torchaudio|torchtext|keras|paddle\.vision|chainer)\.datasets\.\w+$|(Pyg|Dgl)?\w*PropPredDataset$|Planetoid$",
                    call.name,
                )
                and last[:1].isupper()
            ):
                value = call.argument(0, "name") if re.search(r"PropPred|Planetoid", last) else None
                name = text_of(value.data) if value is not None else None
                return Found(name or last, value.place if value is not None and value.place else call.place)
            elif re.search(r"keras\.datasets\.\w+\.load_data$", call.name):
                return Found(call.name.split(".")[-2], call.place)
        return None

    def _given_data(self) -> list[Found]:  # noqa: C901 - cases of one kind, one after another
        found: list[Found] = []
        for setting in self.facts.of("dataset"):
            for given in _texts(setting):
                name = given
                if re.search(r"eval|valid|test|output|tokenizer|ckpt|checkpoint", setting.path.lower()) or name.lower() in ("train", "???", "true", "false", "auto", "text", "null") or len(name) > 300:  # fmt: skip  # noqa: PLR2004 - no name is longer
                    continue
                if re.search(r"\.(yaml|yml)$", name):
                    name = self._inside(name) or name
                if re.search(r"Data[Ss]et$", name) and "/" not in name:
                    name = re.sub(r"_?Data[Ss]et$", "", name)
                    if _known_dataset(name) is None:
                        continue
                if setting.path.endswith(("_target_", "class_path", "_component_")):
                    own = re.sub(r"(DM|DataModule|_dataset|Dataset|Data)$", "", name.rsplit(".", 1)[-1])
                    if any(_known_dataset(str(f.value)) for f in found) or not own:
                        continue
                    name = own
                found.append(
                    Found(name, setting.value.place, setting.value.basis, 0.9 if setting.rank <= CONFIGURED else 0.6)
                )
        strings = [
            (a.data, c.place)
            for c in self.facts.events
            if c.certain and not c.name.startswith("builtins.")
            for a in c.args
            if isinstance(a.data, str)
        ]
        for text, place in strings[:400]:
            if (
                len(text) < NAME_MAX
                and "\x01" not in text
                and _known_dataset(text) is not None
                and family_of(text) is None
                and not re.search(r"ckpt|checkpoint|output|run", text)
            ):
                found.append(Found(text, place, Basis.EXPLICIT, 0.6))
        return found

    def _inside(self, path: str) -> str | None:
        """The folder that a data file of the source (`data.yaml`) points to."""
        for record in self.facts.configs:
            where = record.entries.get("path")
            if where is not None and isinstance(where.data, str) and record.entries.get("names") is not None:
                return where.data
        return path.rsplit("/", 1)[-1].rsplit(".", 1)[0]

    def task(self, dataset: Found | None) -> Found | None:
        """What the job is for."""
        rules = (self._task_given, self._task_of_trainer, self._task_of_script, self._task_of_framework)
        for rule in rules:
            found = rule()
            if found is not None:
                return self._refined(found, dataset)
        data = _table_match(knowledge("tasks")["datasets"], str(dataset.value)) if dataset is not None else None
        head = self._task_of_head()
        if head is not None:
            return self._refined(
                Found(data, dataset.place, Basis.INFERRED, 0.7)
                if head.value == "language_modeling" and data == "sft" and dataset is not None
                else head,
                dataset,
            )
        if self._is_rl():
            return Found("reinforcement_learning", self.facts.launch.place, Basis.INFERRED, 0.8)
        family = self.family()
        base = _yolo(family.value) if family is not None else None
        of_family = next((task for task, members in knowledge("tasks")["families"].items() if base in members), None)
        general = (
            of_family is None
            or of_family == "self_supervised_learning"
            or (of_family in _GENERAL_TASKS and data != "language_modeling")
        )
        if general and data is not None and dataset is not None:
            return Found(data, dataset.place, Basis.INFERRED, 0.7)
        if of_family is not None and family is not None:
            return Found(of_family, family.place, Basis.INFERRED, 0.7)
        return None

    def _task_given(self) -> Found | None:
        table = self.framework.table if self.framework is not None else {}
        for record in self.facts.configs:
            kind = record.get("Architecture.model_type")
            if kind is not None and table.get("name") == "paddleocr":
                return Found(
                    {"det": "text_detection", "rec": "text_recognition", "cls": "text_classification"}.get(
                        str(kind.data), "ocr"
                    ),
                    kind.place,
                )
        for setting in self.facts.of("task_kind"):
            name = text_of(setting.data)
            task = _words_match(name) if name is not None and setting.rank <= CONFIGURED else None
            if task is not None:
                return Found(task, setting.value.place)
        if table.get("name") == "ultralytics":
            for word in self.facts.launch.words[:2]:
                task = _words_match(word.text)
                if task is not None:
                    return Found(task, word.place)
        return None

    def _task_of_trainer(self) -> Found | None:
        for pattern, task in (
            (r"DPOTrainer$|ORPOTrainer$|KTOTrainer$|CPOTrainer$", "dpo"),
            (r"(GRPO|PPO|RLOO)\w*Trainer$", "rlhf"),
            (r"RewardTrainer$", "reward_modeling"),
            (r"SFTTrainer$", "sft"),
        ):
            call = self.facts.call(pattern)
            if call is not None:
                return Found(task, call.place)
        return None

    def _task_of_script(self) -> Found | None:
        launch = self.facts.launch
        words = [
            launch.program or "",
            launch.module or "",
            *(
                w.text
                for w in launch.words[:1]
                if launch.command in ("tune", "swift", "litgpt", "trl", "llamafactory-cli")
            ),
        ]
        for word in words:
            name = word.rsplit("/", 1)[-1].removesuffix(".py")
            task = _words_match(name) if name else None
            if (
                task is not None
                and (not self.facts.code or task not in ("pretraining", "finetuning", "distillation"))
                and launch.place is not None
            ):
                if task == "finetuning" and self.framework is not None and self.framework.table.get("task"):
                    continue
                return Found(task, launch.place, Basis.EXPLICIT, 0.8)
        return None

    def _task_of_framework(self) -> Found | None:
        table = self.framework.table if self.framework is not None else {}
        task = table.get("task")
        if self.framework is not None and self.framework.name == "composer":
            task = "language_modeling" if any("causal_lm" in str(s.data) for s in self.facts.of("model_name")) else task
        return Found(task, self.framework.place) if task and self.framework is not None else None

    def _task_of_head(self) -> Found | None:
        for pattern, task in knowledge("tasks")["heads"]:
            call = self.facts.call(pattern)
            if call is not None:
                return Found(task, call.place, Basis.EXPLICIT, 0.85)
        return None

    def _refined(self, found: Found, dataset: Found | None) -> Found:
        """Say more precisely what a general word means, where the model or the data tells."""
        family = self.family()
        name = str(found.value)
        if (
            name == "object_detection"
            and family is not None
            and family.value in knowledge("tasks")["families"]["instance_segmentation"]
        ):
            return Found("instance_segmentation", family.place, Basis.EXPLICIT, 0.85)
        if name == "pretraining" and family is not None and family.value in ("bert", "roberta", "electra"):
            return Found("masked_lm", found.place, Basis.INFERRED, 0.8)
        if name in ("finetuning", "lora"):
            return Found("sft", found.place, found.basis, 0.7)
        del dataset
        return found


def _yolo(family: Any) -> Any:
    return "yolo" if isinstance(family, str) and family.startswith("yolo") else family


def _is_module(base: V) -> bool:
    name = getattr(base.data, "name", "")
    bases = getattr(base.data, "bases", ())
    return bool(_MODULES.search(str(name))) or any(_is_module(b) for b in bases)


def _stem(name: str) -> str:
    return re.sub(r"\.(ya?ml|pt|pth|ckpt|safetensors|weights|h5)$", "", name.rstrip("/"))


def _short_backbone(backbone: V | None, size: V | None, record: Record) -> list[str]:
    name = str(backbone.data) if backbone is not None else ""
    words = (
        [
            "swin"
            if "swin" in name.lower()
            else "resnet"
            if "resnet" in name.lower()
            else re.sub(r"^build_|_fpn|_backbone$", "", name)
        ]
        if name
        else []
    )
    if size is not None:
        text = str(size.data)
        words.append(text.split("-", maxsplit=1)[0].lower() if "swin" in name.lower() else text)
    scale = record.get("Architecture.Backbone.scale")
    return [w for w in [*words, f"x{scale.data}" if scale is not None else ""] if w]


def _mm_backbone(record: Record) -> list[str]:
    kind, depth = record.get("model.backbone.type"), record.get("model.backbone.depth")
    groups, width = record.get("model.backbone.groups"), record.get("model.backbone.base_width")
    short = {"ResNet": "r", "ResNeXt": "x"}.get(
        str(kind.data) if kind is not None else "", str(kind.data).lower() if kind is not None else ""
    )
    words = [f"{short}{depth.data}" if depth is not None else short]
    if groups is not None and width is not None:
        words.append(f"{groups.data}x{width.data}d")
    return words


def _texts(setting: Setting) -> list[str]:
    data = setting.data
    if isinstance(data, str):
        found = re.fullmatch(r"\(\s*['\"]([^'\"]+)['\"],?\s*\)", data)
        return [found[1] if found is not None else data]
    if isinstance(data, (list, tuple)) and data:
        texts = [v.data for v in data if isinstance(v, V) and isinstance(v.data, str) and as_number(v.data) is None]
        return [",".join(texts)] if texts else []
    return []


@cache
def _names() -> list[tuple[str, str]]:
    return sorted(((k, v) for k, v in knowledge("datasets")["names"].items()), key=lambda kv: -len(kv[0]))


def _known_dataset(text: str) -> str | None:
    lowered = text.lower()
    for word, name in _names():
        if re.search(rf"(?<![a-z0-9]){re.escape(word)}(?![a-z])", lowered):
            return name
    return None


def _dataset_name(text: str) -> str:
    """Return a data set's name: as it is given, and for a path the name in it that is known, else the path without `train`."""
    if not text.startswith(("/", ".", "~", "data/", "datasets/")) and not text.lower().startswith(("data-bin/",)):
        return re.sub(r"(?<=.)\.(csv|txt|json|jsonl|parquet)$", "", text) if "/" not in text else text
    parts = [p for p in text.rstrip("/").split("/") if p not in ("", ".", "..", "~")]
    while len(parts) > 1 and _TRAIN_PART.match(parts[-1]):
        parts.pop()
    known = _known_dataset("/".join(parts))
    exact = [p for p in parts if letters(p) in {letters(w) for w, _ in _names()}]
    if exact:
        return known if known is not None else exact[-1]
    stem = re.sub(r"\.(csv|txt|json|jsonl|parquet|bin|h5|tfrecord|npz|lmdb|arrow)$", "", parts[-1]) if parts else text
    if known is not None and letters(known) in letters(stem) and len(stem) > len(known) + 12:
        return known
    if known is not None and letters(known) not in letters(stem):
        return known
    return stem if text.startswith(("data/", "data-bin/", "datasets/", "./")) or known is not None else text.rstrip("/")


def _words_match(text: str) -> str | None:
    lowered = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", text).lower().replace("-", "_")
    for pattern, task in knowledge("tasks")["words"]:
        if re.search(pattern, lowered):
            return str(task)
    return None


def _table_match(table: dict[str, str], text: str) -> str | None:
    for pattern, task in table.items():
        if re.search(pattern, text, re.IGNORECASE):
            return task
    return None
