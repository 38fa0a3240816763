"""Which model is trained, of which family, how large, on which data and for what."""

from __future__ import annotations

import re
from typing import Final

from schedmate.schemas.events import Basis
from schedmate.services.code_analyzer.resolve.facts import (
    CONFIGURED,
    Facts,
    Found,
    Setting,
    letters,
    text_of,
)
from schedmate.services.code_analyzer.resolve.knowledge.load import knowledge
from schedmate.services.code_analyzer.resolve.model_families import MAKERS, family_of, parameters_of
from schedmate.services.code_analyzer.resolve.values import Class, External, Place, Record, V

_TOKENIZER: Final = re.compile(
    r"Tokenizer|Processor|FeatureExtractor|GenerationConfig|load_dataset|Scheduler|TextStreamer"
)
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


class Models:
    """Answers for the fields about the model."""

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
            if _TOKENIZER.search(call.name) or not MAKERS.search(call.name):
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
        candidates = candidates or [
            (argument.data.name, call.place) for call in self.facts.events for argument in call.args
            if isinstance(argument.data, Class) and not _PARTS.search(argument.data.name) and any(_is_module(b) for b in argument.data.bases)
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
        if table.get("task") == "reinforcement_learning" or self.is_rl():
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

    def is_rl(self) -> bool:
        """Tell whether the job learns by reinforcement."""
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
