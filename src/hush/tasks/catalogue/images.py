"""Images of nobody in particular: dealt to clients by a partition."""

from __future__ import annotations

from hush.tasks.dataset import DataSet
from hush.tasks.fetch import File
from hush.tasks.raw import Form
from hush.tasks.readers.cifar import read_cifar10, read_cifar100
from hush.tasks.readers.digits import read_digits
from hush.tasks.readers.emnist import read_emnist
from hush.tasks.readers.mnist import read_mnist
from hush.tasks.readers.svhn import read_svhn

_FED_SMP = {"lr": 0.125, "lr_decay": 0.99, "momentum": 0.5, "batch_size": 10, "local_epochs": 10}
"""Fed-SMP's settings for Fashion-MNIST, which serve MNIST too."""
_BLUR_EMNIST = {"lr": 0.03, "batch_size": 64, "local_steps": 30}
_BLUR_CIFAR = {"lr": 0.1, "batch_size": 50, "local_steps": 30}
_MNIST_NAMES = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)
_CIFAR_NAMES = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
_TORONTO = "https://www.cs.toronto.edu/~kriz/"
_TINY = "The images are a subset of the 80 Million Tiny Images, a collection that its authors withdrew."


def _files(names: tuple[str, ...], facts: tuple[tuple[int, str], ...]) -> tuple[File, ...]:
    return tuple(File(name, size, sha256) for name, (size, sha256) in zip(names, facts, strict=True))


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
    forms=(
        Form(
            _files(
                _MNIST_NAMES,
                (
                    (26421880, "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84"),
                    (29515, "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845"),
                    (4422102, "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073"),
                    (5148, "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5"),
                ),
            ),
            read_mnist,
        ),
    ),
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
    settings=_FED_SMP,
)

MNIST = DataSet(
    name="mnist",
    title="digits, 28 x 28",
    licence="CC BY-SA 3.0",
    citation="LeCun, Cortes, Burges, The MNIST database of handwritten digits, 1998",
    source="https://ossci-datasets.s3.amazonaws.com/mnist/",
    forms=(
        Form(
            _files(
                _MNIST_NAMES,
                (
                    (9912422, "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609"),
                    (28881, "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c"),
                    (1648877, "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6"),
                    (4542, "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6"),
                ),
            ),
            read_mnist,
        ),
    ),
    train=60000,
    test=10000,
    shape=(1, 28, 28),
    classes=10,
    mean=(0.1307,),
    std=(0.3081,),
    model="fed-smp-cnn",
    papers=("fed-spa-mnist-cnn", "resnet9"),
    clients=6000,
    cohort=100,
    rounds=180,
    validation=5000,
    public=1000,
    settings=_FED_SMP,
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
    forms=(
        Form(
            (
                File("train_32x32.mat", 182040794, "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8"),
                File("extra_32x32.mat", 1329278602, "a133a4beb38a00fcdda90c9489e0c04f900b660ce8a316a5e854838379a71eb3"),
                File("test_32x32.mat", 64275384, "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b"),
            ),
            read_svhn,
            slow=True,
        ),
    ),
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

CIFAR10 = DataSet(
    name="cifar10",
    title="photographs, 32 x 32",
    licence="none declared",
    citation="Krizhevsky, Learning multiple layers of features from tiny images, 2009",
    source=_TORONTO,
    forms=(
        Form(
            (File("cifar-10-binary.tar.gz", 170052171, "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd"),),
            read_cifar10,
            slow=True,
        ),
        Form(
            _files(
                _CIFAR_NAMES,
                (
                    (30730000, "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"),
                    (30730000, "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"),
                    (30730000, "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"),
                    (30730000, "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"),
                    (30730000, "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"),
                    (30730000, "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"),
                ),
            ),
            read_cifar10,
        ),
        Form(
            _files(
                tuple(f"{name}.xz" for name in _CIFAR_NAMES),
                (
                    (21591144, "4ecbbe100a03f24144a010446a7624cf752440df393b4956eeaa65633991242a"),
                    (21631716, "c6364e7eeec150e31dbba645a046c19f09e7ef7d0b4bf4aec0fd453137cf90d9"),
                    (21619408, "01272698827f4626ed48e0d7c262e21874ee7012519f934bbeb9a4d6e206c9fe"),
                    (21603484, "866fa20245db7dc429bcfbcbb9d4712835f4991452797b1803292d341a2685aa"),
                    (21563928, "2dcd98fec5e4ad4310d04b67335db4906579999dbdd2502fd50e9978a4990600"),
                    (21594932, "abbe539c84b67607997125ec1bd018b18c8206aac1c3e1860887c45b1f7698d2"),
                ),
            ),
            read_cifar10,
            slow=True,
        ),
    ),
    train=50000,
    test=10000,
    shape=(3, 32, 32),
    classes=10,
    labels=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
    model="afo-cnn",
    papers=("fed-spa-cifar-cnn", "afo-cnn", "resnet18", "resnet9"),
    clients=500,
    cohort=30,
    rounds=300,
    validation=5000,
    public=1000,
    note=_TINY,
    settings=_BLUR_CIFAR | {"clip": 0.3},
    record_settings={"lr": 0.05, "batch_size": 10, "local_steps": 50, "clip": 0.2},
    record_clients=100,
    record_cohort=10,
    record_rounds=200,
    record_model="fed-spa-cifar-cnn",
)

CIFAR100 = DataSet(
    name="cifar100",
    title="photographs, 32 x 32",
    licence="none declared",
    citation="Krizhevsky, Learning multiple layers of features from tiny images, 2009",
    source=_TORONTO,
    forms=(
        Form(
            (File("cifar-100-binary.tar.gz", 168513733, "58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec"),),
            read_cifar100,
            slow=True,
        ),
    ),
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
    note=_TINY,
    settings=_BLUR_CIFAR,
)

EMNIST = DataSet(
    name="emnist",
    title="letters, 28 x 28",
    licence="public domain",
    citation="Cohen, Afshar, Tapson, van Schaik, EMNIST, 2017 (by class)",
    source="https://biometrics.nist.gov/cs_links/EMNIST/",
    forms=(
        Form(
            (File("gzip.zip", 561753746, "fb9bb67e33772a9cc0b895e4ecf36d2cf35be8b709693c3564cea2a019fcda8e"),),
            read_emnist,
            slow=True,
        ),
    ),
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
    settings=_BLUR_EMNIST,
)
