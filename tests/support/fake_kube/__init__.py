"""A Kubernetes API server on loopback, with the kinds that sandboxes need and their controller.

A real HTTP server over a store in memory. What it promises is what a real one was seen to do;
tests/router/test_kube_fake_contract.py has the official `kubernetes` client and `kr8s` hold it
to that, so that our own client is not merely tested against its own echo.
"""

from support.fake_kube.controller import Controller
from support.fake_kube.faults import Fault, Faults
from support.fake_kube.rbac import Rule, User
from support.fake_kube.server import FakeKube, fake_kube, fake_kube_in_thread
from support.fake_kube.store import Obj

__all__ = [
    "Controller",
    "FakeKube",
    "Fault",
    "Faults",
    "Obj",
    "Rule",
    "User",
    "fake_kube",
    "fake_kube_in_thread",
]
