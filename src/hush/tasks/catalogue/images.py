"""Images of nobody in particular: dealt to clients by a partition."""

from __future__ import annotations

from dataclasses import replace

from hush.tasks.catalogue.files import form
from hush.tasks.dataset import DataSet
from hush.tasks.raw import Form
from hush.tasks.readers.cifar import read_cifar10, read_cifar100
from hush.tasks.readers.digits import read_digits
from hush.tasks.readers.idx import read_emnist, read_mnist
from hush.tasks.readers.svhn import read_svhn

_BLUR_CIFAR = {"lr": 0.1, "batch_size": 50, "local_steps": 30}

DIGITS = DataSet(
    name="digits",
    title="digits, 8 x 8",
    licence="CC BY 4.0",
    citation="Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, UCI 1998 (as bundled by scikit-learn)",
    source="bundled",
    forms=(Form((), read_digits),),
    train=1500,
    test=297,
    shape=(1, 8, 8),
    classes=10,
    model="mlp",
    clients=400,
    cohort=100,
    rounds=60,
    validation=150,
    public=150,
    settings={"lr": 0.1, "batch_size": 4, "local_epochs": 5, "momentum": 0.5, "public_steps": 40},
    record_settings={"lr": 0.3, "batch_size": 20, "local_steps": 5},
    record_clients=20,
    record_cohort=5,
)

FASHION_MNIST = DataSet(
    name="fashion-mnist",
    title="clothing, 28 x 28",
    licence="MIT",
    citation="Xiao, Rasul, Vollgraf, Fashion-MNIST, 2017",
    source="https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    forms=(form("fashion-mnist", read_mnist),),
    train=60000,
    test=10000,
    shape=(1, 28, 28),
    classes=10,
    labels=("T-shirt", "trousers", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
    mean=(0.2860,),
    std=(0.3530,),
    model="fed-smp-cnn",
    papers=("fed-smp-cnn",),
    clients=6000,
    cohort=100,
    rounds=180,
    validation=5000,
    public=1000,
    settings={"lr": 0.125, "lr_decay": 0.99, "momentum": 0.5, "batch_size": 10, "local_epochs": 10},  # Fed-SMP's
)

MNIST = replace(
    FASHION_MNIST,  # as large, and its settings serve
    name="mnist",
    title="digits, 28 x 28",
    licence="CC BY-SA 3.0",
    citation="LeCun, Cortes, Burges, The MNIST database of handwritten digits, 1998",
    source="https://ossci-datasets.s3.amazonaws.com/mnist/",
    forms=(form("mnist", read_mnist),),
    labels=(),
    mean=(0.1307,),
    std=(0.3081,),
    papers=("fed-spa-mnist-cnn", "resnet9"),
    record_settings={"lr": 0.05, "batch_size": 10, "local_steps": 300, "clip": 0.2},
    record_clients=100,
    record_cohort=10,
    record_rounds=45,
    record_model="fed-spa-mnist-cnn",
)

SVHN = DataSet(
    name="svhn",
    title="house numbers, 32 x 32",
    licence="non-commercial",
    citation="Netzer, Wang, Coates, Bissacco, Wu, Ng, Reading digits in natural images, 2011",
    source="http://ufldl.stanford.edu/housenumbers/",
    forms=(form("svhn", read_svhn, slow=True),),
    train=604388,
    test=26032,
    shape=(3, 32, 32),
    classes=10,
    mean=(0.4377, 0.4438, 0.4728),
    std=(0.1980, 0.2010, 0.1970),
    model="fed-smp-svhn-cnn",
    papers=("fed-smp-svhn-cnn",),
    clients=6000,
    cohort=100,
    rounds=180,
    validation=5000,
    public=2000,
    note="For non-commercial use alone, as its page says.",
    settings={"lr": 0.05, "lr_decay": 0.99, "momentum": 0.8, "batch_size": 50, "local_epochs": 5, "clip": 0.4},
)

CIFAR100 = DataSet(
    name="cifar100",
    title="photographs, 32 x 32",
    licence="none declared",
    citation="Krizhevsky, Learning multiple layers of features from tiny images, 2009",
    source="https://www.cs.toronto.edu/~kriz/",
    forms=(form("cifar100", read_cifar100, slow=True),),
    train=50000,
    test=10000,
    shape=(3, 32, 32),
    classes=100,
    mean=(0.5071, 0.4865, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
    model="resnet9",
    papers=("resnet9",),
    clients=500,
    cohort=30,
    rounds=300,
    validation=5000,
    public=1000,
    note="The images are a subset of the 80 Million Tiny Images, a collection that its authors withdrew.",
    settings=_BLUR_CIFAR,
)

CIFAR10 = replace(
    CIFAR100,
    name="cifar10",
    forms=(
        form("cifar10", read_cifar10, slow=True),
        form("cifar10-plain", read_cifar10),
        form("cifar10-xz", read_cifar10, slow=True),
    ),
    classes=10,
    labels=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
    model="afo-cnn",
    papers=("fed-spa-cifar-cnn", "afo-cnn", "resnet18", "resnet9"),
    settings=_BLUR_CIFAR | {"clip": 0.3},
    record_settings={"lr": 0.05, "batch_size": 10, "local_steps": 50, "clip": 0.2},
    record_clients=100,
    record_cohort=10,
    record_rounds=200,
    record_model="fed-spa-cifar-cnn",
)

EMNIST = DataSet(
    name="emnist",
    title="letters, 28 x 28",
    licence="public domain",
    citation="Cohen, Afshar, Tapson, van Schaik, EMNIST, 2017 (by class)",
    source="https://biometrics.nist.gov/cs_links/EMNIST/",
    forms=(form("emnist", read_emnist, slow=True),),
    train=697932,
    test=116323,
    shape=(1, 28, 28),
    classes=62,
    mean=(0.1736,),
    std=(0.3317,),
    model="afo-cnn",
    papers=("afo-cnn", "ddgauss-cnn", "resnet18"),
    clients=3400,
    cohort=136,
    rounds=1000,
    validation=5000,
    public=1000,
    settings={"lr": 0.03, "batch_size": 64, "local_steps": 30},  # BLUR's
)
