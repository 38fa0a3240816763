"""Published work of well-known models and sizes of well-known data sets: constants of the literature, none of them fitted here.

Forward FLOPs count a multiplication and an addition as two. A picture's are for a side of `reference` pixels and grow with the pixels. A
token's are two for each parameter that multiplies it (Kaplan et al. 2020, "Scaling laws for neural language models", section 2.1), and so
are an audio step's in a recurrent or self-attending network. `params` is what data-parallel workers synchronise.

Sources: TV, the multiply-adds and parameters of torchvision's model tables (doubled here). HE, He et al. 2016, "Deep residual learning".
RF, Redmon and Farhadi 2018, "YOLOv3", with the FLOPs of its configuration files. UL, Ultralytics' tables (FLOPs at 640 pixels). CARION, 2020
(DETR). DEVLIN, 2019 (BERT). LIU, 2019 (RoBERTa). SANH, 2019 (DistilBERT). LAN, 2020 (ALBERT). CLARK, 2020 (ELECTRA). RADFORD, 2019 (GPT-2). RAFFEL, 2020 (T5).
LEWIS, 2020 (BART). VASWANI, 2017. AMODEI, 2016 (Deep Speech 2, the models of 38 million parameters of tables 1 to 3; 50 steps a second after
a stride of two). BAEVSKI, 2020 (wav2vec 2.0, 49 steps a second). HSU, 2021 (HuBERT). GULATI, 2020 (Conformer, 25 steps a second). RADFORD-W, 2023 (Whisper, 1500
steps in 30 s). HE-NCF, 2017 (layers 256, 128, 64 for 64 factors; MovieLens 1M). NAUMOV, 2019 (DLRM, the layers of MLPerf's Terabyte setting).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal

Kind = Literal["picture", "token", "second", "sample"]


@dataclass(frozen=True, slots=True)
class Model:
    """A model's forward FLOPs for one sample's unit: a picture at `reference` pixels a side, a token, a second of sound, a sample.

    `reference` of a text is the tokens of its samples, of sound the seconds, where the data set does not say. A `small_stem` model divides
    a picture by four at once; on pictures of at most 64 pixels it is trained without that, so each later layer sees 16 times the pixels
    (He et al. 2016, section 4.2).
    """

    kind: Kind
    forward: float
    params: float
    reference: float
    source: str
    small_stem: bool = False


@dataclass(frozen=True, slots=True)
class Data:
    """A data set: its training samples, and how large one is: pixels a side, tokens or seconds, each None where that is the model's to say."""

    samples: float
    side: float | None = None
    tokens: float | None = None
    seconds: float | None = None


def _pictures(source: str, side: float, rows: str, *, small_stem: bool = False) -> dict[str, Model]:
    """Read rows of name, multiply-adds in 10^9, parameters in 10^6."""
    table = (line.split() for line in rows.split(";"))
    return {n: Model("picture", 2e9 * float(m), 1e6 * float(p), side, source, small_stem) for n, m, p in table}


def _tokens(source: str, tokens: float, rows: str) -> dict[str, Model]:
    """Read rows of name, parameters that multiply each token in 10^6 (without embeddings), all parameters in 10^6."""
    table = (line.split() for line in rows.split(";"))
    return {n: Model("token", 2e6 * float(m), 1e6 * float(p), tokens, source) for n, m, p in table}


def _sounds(source: str, steps: float, rows: str) -> dict[str, Model]:
    """Read rows of name, parameters in 10^6; `steps` a second. A sample is LibriSpeech's mean utterance where nothing else is known."""
    table = (line.split() for line in rows.split(";"))
    return {n: Model("second", 2e6 * float(p) * steps, 1e6 * float(p), UTTERANCE_S, source) for n, p in table}


UTTERANCE_S: Final = 12.3
"""Panayotov et al. 2015, LibriSpeech: 960 hours in 281,241 utterances."""

MODELS: Final[dict[str, Model]] = {
    **_pictures("HE, TV", 224, "resnet18 1.81 11.7;resnet34 3.66 21.8;resnet50 4.09 25.6;resnet101 7.80 44.5;resnet152 11.51 60.2", small_stem=True),
    **_pictures("TV", 224, "resnext5032x4d 4.23 25.0;resnext10132x8d 16.41 88.8;wideresnet502 11.40 68.9;wideresnet1012 22.75 126.9;densenet121 2.83 8.0;densenet169 3.36 14.1;densenet201 4.29 20.0;densenet161 7.73 28.7", small_stem=True),
    **_pictures("TV", 224, "alexnet 0.71 61.1;vgg11 7.61 132.9;vgg13 11.31 133.0;vgg16 15.47 138.4;vgg19 19.63 143.7;googlenet 1.50 6.6;squeezenet10 0.82 1.2;squeezenet11 0.35 1.2;shufflenetv2x10 0.14 2.3;mobilenetv2 0.30 3.5;mobilenetv3large 0.22 5.5;mobilenetv3small 0.06 2.5;mnasnet10 0.31 4.4;efficientnetb0 0.39 5.3"),
    **_pictures("TV", 224, "convnexttiny 4.46 28.6;convnextsmall 8.68 50.2;convnextbase 15.36 88.6;convnextlarge 34.36 197.8;swint 4.49 28.3;swintiny 4.49 28.3;swins 8.74 49.6;swinsmall 8.74 49.6;swinb 15.43 87.8;swinbase 15.43 87.8;vitb16 17.56 86.6;vitbase 17.56 86.6;vitb32 4.41 88.2;vitl16 61.55 304.3;vitlarge 61.55 304.3;vitl32 15.38 306.5;deitbase 17.56 86.6;regnety16gf 15.91 83.6;maxvitt 5.56 30.9"),
    **_pictures("TV", 299, "inceptionv3 5.71 27.2"),
    **_pictures("TV", 384, "efficientnetv2s 8.37 21.5"),
    **_pictures("TV", 480, "efficientnetv2m 24.58 54.1;efficientnetv2l 56.08 118.5"),
    **_pictures("TV", 380, "efficientnetb4 4.39 19.3"),
    **_pictures("TV", 600, "efficientnetb7 37.75 66.3"),
    **_pictures("TV", 800, "fasterrcnnresnet50fpn 134.38 41.8;fasterrcnn 134.38 41.8;maskrcnnresnet50fpn 134.38 44.4;maskrcnn 134.38 44.4;retinanetresnet50fpn 151.54 34.0;retinanet 151.54 34.0;fcosresnet50fpn 128.21 32.3"),
    **_pictures("TV", 300, "ssd300vgg16 34.86 35.6;ssd300 34.86 35.6"),
    **_pictures("TV", 520, "fcnresnet50 152.72 35.3;fcnresnet101 232.74 54.3;deeplabv3resnet50 178.72 42.0;deeplabv3resnet101 258.74 61.0;deeplabv3mobilenetv3large 10.45 11.0;lrasppmobilenetv3large 2.09 3.2"),
    **_pictures("CARION", 800, "detrresnet50 86.0 41.3;detr 86.0 41.3"),
    **_pictures("RF", 416, "yolov3 32.93 61.9;yolov3tiny 2.78 8.9;yolov2 14.73 50.7"),
    **_pictures("UL", 640, "yolov5n 2.25 1.9;yolov5s 8.25 7.2;yolov5m 24.5 21.2;yolov5l 54.55 46.5;yolov5x 102.85 86.7;yolov8n 4.35 3.2;yolov8s 14.3 11.2;yolov8m 39.45 25.9;yolov8l 82.6 43.7;yolov8x 128.9 68.2;yolo11n 3.25 2.6;yolo11s 10.75 9.4;yolo11m 34.0 20.1;yolo11l 43.45 25.3;yolo11x 97.45 56.9"),
    **_tokens("DEVLIN", 512, "bertbase 85 110;bertlarge 302 340"),
    **_tokens("LIU", 512, "robertabase 85 125;robertalarge 302 355;xlmrobertabase 85 278;xlmrobertalarge 302 560"),
    **_tokens("SANH", 512, "distilbertbase 42.5 66;distilrobertabase 42.5 82"),
    **_tokens("LAN, CLARK", 512, "albertbase 85 12;albertlarge 302 18;electrabase 85 110;electralarge 302 335"),
    **_tokens("RADFORD", 1024, "gpt2 85 124;gpt2medium 302 355;gpt2large 708 774;gpt2xl 1475 1558;distilgpt2 42.5 82"),
    **_tokens("RAFFEL", 512, "t5small 44 60.5;t5base 198 223;t5large 704 738;t53b 2785 2850;t511b 11240 11307"),
    **_tokens("LEWIS", 1024, "bartbase 101 139;bartlarge 354 406"),
    **_tokens("VASWANI", 256, "transformerbase 44 65;transformerbig 176 213"),
    **_sounds("AMODEI", 50, "deepspeech2 38;deepspeech 38"),
    **_sounds("BAEVSKI, HSU", 49, "wav2vec2base 95;wav2vec2large 317;hubertbase 95;hubertlarge 317"),
    **_sounds("GULATI", 25, "conformersmall 10.3;conformermedium 30.7;conformerlarge 118.8"),
    **_sounds("RADFORD-W", 50, "whispertiny 39;whisperbase 74;whispersmall 244;whispermedium 769;whisperlarge 1550"),
    "neumf": Model("sample", 2 * (256 * 128 + 128 * 64 + 128), 1.9e6, 1, "HE-NCF"),
    "dlrm": Model("sample", 2 * 2.37e6, 2.4e6, 1, "NAUMOV"),
}  # fmt: skip

FAMILIES: Final = {"ncf": "neumf", "deepspeech": "deepspeech2", "dlrm": "dlrm", "yolov3": "yolov3"}
"""The model of a family, where its members differ little or one of them is meant."""

TEXT_FAMILIES: Final = {
    "bert": 512, "roberta": 512, "xlm-roberta": 512, "distilbert": 512, "albert": 512, "electra": 512, "deberta": 512, "mpnet": 512, "minilm": 512,
    "t5": 512, "mt5": 1024, "bart": 1024, "pegasus": 1024, "gpt2": 1024, "gpt": 1024, "opt": 2048, "bloom": 2048, "pythia": 2048, "gpt-neo": 2048, "gpt-neox": 2048,
    "gpt-j": 2048, "falcon": 2048, "mpt": 2048, "llama": 2048, "llama2": 4096, "llama3": 8192, "mistral": 8192, "gemma": 8192, "gemma2": 8192, "phi": 2048,
    "modernbert": 8192, "qwen1.5": 4096, "qwen2": 4096, "qwen2.5": 4096, "olmo": 2048,
}  # fmt: skip
"""Families of text transformers whose size in parameters tells their work, with the context that their papers pretrain on, in tokens."""

DATA: Final[dict[str, Data]] = {
    "mnist": Data(60_000, side=28),  # LeCun et al. 1998
    "fashionmnist": Data(60_000, side=28),  # Xiao et al. 2017
    "cifar10": Data(50_000, side=32),  # Krizhevsky 2009
    "cifar100": Data(50_000, side=32),
    "svhn": Data(73_257, side=32),  # Netzer et al. 2011
    "tinyimagenet": Data(100_000, side=64),  # Stanford CS231n
    "stl10": Data(5_000, side=96),  # Coates et al. 2011
    "imagenet21k": Data(14_197_122),  # Deng et al. 2009
    "imagenet": Data(1_281_167),  # Russakovsky et al. 2015
    "ilsvrc": Data(1_281_167),
    "food101": Data(75_750),  # Bossard et al. 2014
    "coco": Data(118_287),  # Lin et al. 2014, the split of 2017
    "voc2007": Data(5_011),  # Everingham et al. 2010, trainval
    "voc": Data(11_540),  # Everingham et al. 2015, 2012 trainval
    "cityscapes": Data(2_975),  # Cordts et al. 2016
    "ade20k": Data(20_210),  # Zhou et al. 2017
    "kinetics400": Data(246_245),  # Kay et al. 2017
    "squadv2": Data(130_319, tokens=384),  # Rajpurkar et al. 2018; windows as in Devlin et al. 2019
    "squad": Data(87_599, tokens=384),  # Rajpurkar et al. 2016; windows as in Devlin et al. 2019
    "sst2": Data(67_349, tokens=128),  # GLUE, Wang et al. 2019; 128 tokens as in Devlin et al. 2019
    "mnli": Data(392_702, tokens=128),
    "qqp": Data(363_846, tokens=128),
    "qnli": Data(104_743, tokens=128),
    "cola": Data(8_551, tokens=128),
    "mrpc": Data(3_668, tokens=128),
    "rte": Data(2_490, tokens=128),
    "imdb": Data(25_000, tokens=512),  # Maas et al. 2011, cut as in Sun et al. 2019
    "agnews": Data(120_000, tokens=128),  # Zhang et al. 2015
    "alpaca": Data(52_002, tokens=512),  # Taori et al. 2023
    "an4": Data(948, seconds=2.7),  # Acero 1990: 0.71 hours
    "librispeech": Data(281_241, seconds=UTTERANCE_S),
    "ljspeech": Data(13_100, seconds=6.6),  # Ito and Johnson 2017
    "commonvoice": Data(564_337, seconds=5.0),  # Ardila et al. 2020
    "movielens20m": Data(20_000_263),  # Harper and Konstan 2015
    "movielens1m": Data(1_000_209),
}


def plain(name: object) -> str:
    """Return a name's letters and digits.

    >>> plain("bert-base-uncased")
    'bertbaseuncased'
    """
    return re.sub(r"[^a-z0-9]", "", str(name).lower())


@cache
def model_of(name: str | None, family: str | None, params: float | None) -> Model | None:
    """Return a model's published work: of its name, or the longest known name that it begins with; of a text transformer's size; of its family."""
    short = plain((name or "").rsplit("/", 1)[-1])
    found = max((known for known in MODELS if _begins(short, known)), key=len, default=None)
    if found is not None:
        return MODELS[found]
    if params is not None and params > 0 and family in TEXT_FAMILIES:
        return Model("token", 2.0 * params, params, TEXT_FAMILIES[family], "Kaplan et al. 2020")
    return MODELS[FAMILIES[family]] if family in FAMILIES else None


def _begins(name: str, known: str) -> bool:
    """Tell whether a name is a known one with more words after it; digits that go on make another number (`resnet18` is no `resnet183`)."""
    return name.startswith(known) and not (known[-1].isdigit() and name[len(known) : len(known) + 1].isdigit())


def data_of(name: str | None) -> Data | None:
    """Return a data set by its name."""
    known = known_data(name)
    return DATA[known] if known is not None else None


@cache
def known_data(name: str | None) -> str | None:
    """Return the longest name of a known data set that stands in a name or path."""
    short = plain(name or "")
    return max((known for known in DATA if known in short), key=len, default=None)
