"""Data of people: by writer, by role, by census form."""

from __future__ import annotations

from dataclasses import replace

from hush.tasks.catalogue.files import form
from hush.tasks.catalogue.images import EMNIST
from hush.tasks.dataset import DataSet
from hush.tasks.readers.adult import read_adult
from hush.tasks.readers.shakespeare import ALPHABET, read_shakespeare
from hush.tasks.readers.tff import read_femnist, read_tff_shakespeare
from hush.tasks.readers.tff_sqlite import read_femnist_sqlite, read_tff_shakespeare_sqlite

_TFF = "https://storage.googleapis.com/tff-datasets-public/"

FEMNIST = replace(
    EMNIST,
    name="femnist",
    title="letters, by writer",
    citation="Caldas et al., LEAF, 2018; Cohen et al., EMNIST, 2017 (as TensorFlow Federated distributes it)",
    source=_TFF,
    forms=(form("femnist", read_femnist_sqlite, slow=True), form("femnist-h5", read_femnist, slow=True)),
    train=671585,
    test=77483,
    mean=(0.0,),
    std=(1.0,),
    natural=3400,
    partition="natural",
    settings={**EMNIST.settings, "clip": 0.03},
)

ADULT = DataSet(
    name="adult",
    title="census, incomes",
    licence="CC BY 4.0",
    citation="Becker and Kohavi, Adult, UCI 1996",
    source="https://archive.ics.uci.edu/ml/machine-learning-databases/adult/",
    forms=(form("adult", read_adult),),
    train=32561,
    test=16281,
    shape=(102,),
    classes=2,
    labels=("<=50K", ">50K"),
    model="logistic",
    papers=("logistic", "cpfed-mlp"),
    clients=16,
    cohort=10,
    rounds=50,
    evaluation="clients",
    public=400,
    metrics=("auc", "macro_f1"),
    note="Race and sex are among the categories.",
    settings={"lr": 0.1, "batch_size": 64, "local_steps": 10},
    record_settings={"lr": 1.0, "batch_size": 64, "local_steps": 10, "clip": 2.0},
)

SHAKESPEARE_TFF = DataSet(
    name="shakespeare-tff",
    title="text, by role (TFF)",
    licence="public domain",
    citation="McMahan et al., 2017; Reddi et al., Adaptive federated optimization, 2021",
    source=_TFF,
    forms=(
        form("shakespeare-tff", read_tff_shakespeare_sqlite, slow=True),
        form("shakespeare-tff-h5", read_tff_shakespeare, slow=True),
    ),
    train=16068,
    test=2356,
    shape=(80,),
    classes=90,
    model="char-lstm-every",
    papers=("char-lstm-every",),
    text=True,
    natural=715,
    partition="natural",
    clients=715,
    cohort=10,
    rounds=1000,
    validation=500,
    public=1000,
    metrics=("perplexity",),
    settings={"lr": 1.0, "lr_decay": 0.99, "lr_decay_every": 50, "momentum": 0.9, "batch_size": 4, "local_epochs": 1, "clip": 0.4},
)

SHAKESPEARE = replace(
    SHAKESPEARE_TFF,
    name="shakespeare",
    title="text, by role (LEAF)",
    licence="personal use",
    citation="Caldas et al., LEAF, 2018; Project Gutenberg eBook 100",
    source="https://web.archive.org/web/2012id_/http://www.gutenberg.org/cache/epub/100/",
    forms=(form("shakespeare", read_shakespeare), form("shakespeare-unix", read_shakespeare)),  # the line ends differ
    train=3678451,
    test=356921,
    classes=80,
    labels=("newline", "space", *ALPHABET[2:]),
    model="char-lstm",
    papers=("char-lstm",),
    natural=660,
    clients=660,
    validation=2000,
    test_examples=10000,
    note="The posting of 1 September 2011; today's is another text. The works are in the public domain; this edition is not for "
    "commercial use (World Library, Inc., 1990-1993).",
    settings={"lr": 0.8, "batch_size": 10, "local_epochs": 1, "max_local_steps": 100, "clip": 0.4},
)
