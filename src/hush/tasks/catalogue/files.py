"""The catalogue's files. Every checksum is of a file that was seen, or that its publishers or users name."""

from __future__ import annotations

from hush.tasks.fetch import File
from hush.tasks.raw import Form, Read

_TABLE = """
fashion-mnist      train-images-idx3-ubyte.gz   26421880 3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84
fashion-mnist      train-labels-idx1-ubyte.gz      29515 a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845
fashion-mnist      t10k-images-idx3-ubyte.gz     4422102 346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073
fashion-mnist      t10k-labels-idx1-ubyte.gz        5148 67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5
mnist              train-images-idx3-ubyte.gz    9912422 440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609
mnist              train-labels-idx1-ubyte.gz      28881 3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c
mnist              t10k-images-idx3-ubyte.gz     1648877 8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6
mnist              t10k-labels-idx1-ubyte.gz        4542 f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6
svhn               train_32x32.mat             182040794 435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8
svhn               extra_32x32.mat            1329278602 a133a4beb38a00fcdda90c9489e0c04f900b660ce8a316a5e854838379a71eb3
svhn               test_32x32.mat               64275384 cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b
cifar10            cifar-10-binary.tar.gz      170052171 c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd
cifar10-plain      data_batch_1.bin             30730000 cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5
cifar10-plain      data_batch_2.bin             30730000 a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed
cifar10-plain      data_batch_3.bin             30730000 bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67
cifar10-plain      data_batch_4.bin             30730000 014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48
cifar10-plain      data_batch_5.bin             30730000 755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add
cifar10-plain      test_batch.bin               30730000 8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b
cifar10-xz         data_batch_1.bin.xz          21591144 4ecbbe100a03f24144a010446a7624cf752440df393b4956eeaa65633991242a
cifar10-xz         data_batch_2.bin.xz          21631716 c6364e7eeec150e31dbba645a046c19f09e7ef7d0b4bf4aec0fd453137cf90d9
cifar10-xz         data_batch_3.bin.xz          21619408 01272698827f4626ed48e0d7c262e21874ee7012519f934bbeb9a4d6e206c9fe
cifar10-xz         data_batch_4.bin.xz          21603484 866fa20245db7dc429bcfbcbb9d4712835f4991452797b1803292d341a2685aa
cifar10-xz         data_batch_5.bin.xz          21563928 2dcd98fec5e4ad4310d04b67335db4906579999dbdd2502fd50e9978a4990600
cifar10-xz         test_batch.bin.xz            21594932 abbe539c84b67607997125ec1bd018b18c8206aac1c3e1860887c45b1f7698d2
cifar100           cifar-100-binary.tar.gz     168513733 58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec
emnist             gzip.zip                    561753746 fb9bb67e33772a9cc0b895e4ecf36d2cf35be8b709693c3564cea2a019fcda8e
femnist            emnist_all.sqlite.lzma      170507172 c3aaf91b4cf4e69d53d81627ad119eccdc878ff906f68e66063ff10f67faad48
femnist-h5         fed_emnist.tar.bz2                  - fe1ed5a502cea3a952eb105920bff8cffb32836b5173cb18a57a32c3606f3ea0
shakespeare        pg100.txt                     5589889 7a8203c516f67bc90e1dba9e3de401a3c4118cd21bc93dbe9724eee1c83660c7
shakespeare-unix   pg100.txt                     5465102 5886dc8d8d2d1726fc93a1b014ff7db691707d5a2ccb8b8888d87037dccc8982
shakespeare-tff    shakespeare.sqlite.lzma       1329828 d3d11fceb9e105439ac6f4d52af6efafed5a2a1e1eb24c5bd2dd54ced242f5c4
shakespeare-tff-h5 shakespeare.tar.bz2                 - 0285be9906cb5f268092eee4edeeacfc2af4574f2941f7cc2f08a321d7f5c707
adult              adult.data                    3974305 5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d
adult              adult.test                    2003153 a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05
"""
"""Which form of a data set, the file's name, its bytes (- where nobody who published it said) and its sha256."""

_FILES: dict[str, list[File]] = {}
for _line in _TABLE.strip().splitlines():
    _form, _name, _size, _sha256 = _line.split()
    _FILES.setdefault(_form, []).append(File(_name, None if _size == "-" else int(_size), _sha256))


def form(name: str, read: Read, *, slow: bool = False) -> Form:
    """The files of the table that are called so, and how to read them."""
    return Form(tuple(_FILES[name]), read, slow)
