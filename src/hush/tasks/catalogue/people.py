"""Data of people: by writer, by role, by census form."""

from __future__ import annotations

from hush.tasks.dataset import DataSet
from hush.tasks.fetch import File
from hush.tasks.raw import Form
from hush.tasks.readers.adult import read_adult
from hush.tasks.readers.shakespeare import ALPHABET, read_shakespeare
from hush.tasks.readers.tff import read_femnist, read_tff_shakespeare
from hush.tasks.readers.tff_sqlite import read_femnist_sqlite, read_tff_shakespeare_sqlite

_TFF = "https://storage.googleapis.com/tff-datasets-public/"

FEMNIST = DataSet(
    name="femnist",
    title="letters, by writer",
    licence="public domain",
    citation="Caldas et al., LEAF, 2018; Cohen et al., EMNIST, 2017 (as TensorFlow Federated distributes it)",
    source=_TFF,
    forms=(
        Form(
            (File("emnist_all.sqlite.lzma", 170507172, "c3aaf91b4cf4e69d53d81627ad119eccdc878ff906f68e66063ff10f67faad48"),),
            read_femnist_sqlite,
            slow=True,
        ),
        Form(
            (File("fed_emnist.tar.bz2", None, "fe1ed5a502cea3a952eb105920bff8cffb32836b5173cb18a57a32c3606f3ea0"),),
            read_femnist,
            slow=True,
        ),
    ),
    train=671585,
    test=77483,
    shape=(1, 28, 28),
    classes=62,
    mean=(0.0,),
    std=(1.0,),
    model="afo-cnn",
    papers=("afo-cnn", "ddgauss-cnn", "resnet18"),
    natural=3400,
    partition="natural",
    clients=3400,
    cohort=136,
    rounds=1000,
    validation=5000,
    public=1000,
    settings={"lr": 0.03, "batch_size": 64, "local_steps": 30, "clip": 0.03},
)

ADULT = DataSet(
    name="adult",
    title="census, incomes",
    licence="CC BY 4.0",
    citation="Becker and Kohavi, Adult, UCI 1996",
    source="https://archive.ics.uci.edu/ml/machine-learning-databases/adult/",
    forms=(
        Form(
            (
                File("adult.data", 3974305, "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d"),
                File("adult.test", 2003153, "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05"),
            ),
            read_adult,
        ),
    ),
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

SHAKESPEARE = DataSet(
    name="shakespeare",
    title="text, by role (LEAF)",
    licence="personal use",
    citation="Caldas et al., LEAF, 2018; Project Gutenberg eBook 100",
    source="https://web.archive.org/web/2012id_/http://www.gutenberg.org/cache/epub/100/",
    forms=(
        Form((File("pg100.txt", 5589889, "7a8203c516f67bc90e1dba9e3de401a3c4118cd21bc93dbe9724eee1c83660c7"),), read_shakespeare),
        # the same with the line ends of Unix
        Form((File("pg100.txt", 5465102, "5886dc8d8d2d1726fc93a1b014ff7db691707d5a2ccb8b8888d87037dccc8982"),), read_shakespeare),
    ),
    train=3678451,
    test=356921,
    shape=(80,),
    classes=80,
    labels=("newline", "space", *ALPHABET[2:]),
    model="char-lstm",
    papers=("char-lstm",),
    text=True,
    natural=660,
    partition="natural",
    clients=660,
    cohort=10,
    rounds=1000,
    validation=2000,
    public=1000,
    test_examples=10000,
    metrics=("perplexity",),
    note="The posting of 1 September 2011; today's is another text. The works are in the public domain; this edition is not for "
    "commercial use (World Library, Inc., 1990-1993).",
    settings={"lr": 0.8, "batch_size": 10, "local_epochs": 1, "max_local_steps": 100, "clip": 0.4},
)

SHAKESPEARE_TFF = DataSet(
    name="shakespeare-tff",
    title="text, by role (TFF)",
    licence="public domain",
    citation="McMahan et al., 2017; Reddi et al., Adaptive federated optimization, 2021",
    source=_TFF,
    forms=(
        Form(
            (File("shakespeare.sqlite.lzma", 1329828, "d3d11fceb9e105439ac6f4d52af6efafed5a2a1e1eb24c5bd2dd54ced242f5c4"),),
            read_tff_shakespeare_sqlite,
            slow=True,
        ),
        Form(
            (File("shakespeare.tar.bz2", None, "0285be9906cb5f268092eee4edeeacfc2af4574f2941f7cc2f08a321d7f5c707"),),
            read_tff_shakespeare,
            slow=True,
        ),
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
