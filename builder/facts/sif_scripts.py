"""The files that Apptainer itself writes into a SIF, with the SHA-256 of what its versions wrote.

Of 1.0.0 to 1.5.3, `internal/pkg/build/sources` at each tag of
https://github.com/apptainer/apptainer. They run before every program in a SIF, or in its place.
"""

from __future__ import annotations

from collections.abc import Mapping

VERSIONS = "1.0 to 1.5"
_EMPTY = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
SIF_SCRIPTS: Mapping[str, frozenset[str]] = {
    f".singularity.d/{path}": frozenset(digests)
    for path, digests in {
        "env/01-base.sh": (
            "0ff7f75c7fff71e5c7378543a410148c679823d3f639c84dfd0ee0fb97138650",
            "f3109c12c5b99874a52f0f04219514e1fe4e4073fcd0dfa8772553c6a50078dd",
        ),
        "env/94-appsbase.sh": (_EMPTY,),  # an image of ours has no apps
        "env/95-apps.sh": (
            "ea5d3b8db4c872ef5e642d4c8ca87ecf9d093eaacf1f761d47ca6e5b950f3bad",
            "8281ca191225faaeb3a0fc251f37e9603df056a4ba51cb875039ce8e241958cb",
        ),
        "env/99-base.sh": (
            "95b5b10ee0bdbcb0053ff231855c497b91e020b6b7de38ac164f056fb7407398",
            "9c257908a993ae0b7d5171442b29f14ff9288095789452f5db705fa13e2285fe",
            "03d00ded991c8615807c5f7c7e17bb70c253f88e75b358cd1206ffd104ad82a9",
        ),
        "env/99-runtimevars.sh": (
            "95f47ff84ad6cb03ea8e80758be09c06bdd4e5ce562656298b1d7de57b7cb4f0",
            "92eb7afbbedc63c03bb80855b162dfd70a8864b655b437f5663cadc0d168a1d6",
        ),
        "actions/exec": ("d4898a0562b8b0357fb4cbf49accfdb795b7f997b056548aaa0b3efc51371c4e",),
        "actions/run": ("ba9a6d5d67132f654afb2c2ed17133c67894c412c3109f2abe4f69405dbf970f",),
        "actions/shell": ("96b8c879a22ad2614761a204465c1542b8f61a29cba149ad48e59afe1532ce36",),
        "actions/start": ("d063a3dcf60a6da26507274ae4c5c73b4c3f0a8157c7e5b1327ef35c1580d70f",),
        "actions/test": ("e63bcaea5db1f76e9aa894b0d85299ddfca8543588eccd5cbb2c96e3982259f6",),
        "startscript": ("2de1dab9ee6b054aca3b5415cc5df0bc21702c1b2f358c98ba2f7e5287801605",),
    }.items()
}
