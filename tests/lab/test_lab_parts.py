"""The parts of a lab that need no root: rates, names, and error messages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from raddle.errors import InputError
from raddle.lab import Lab, names
from raddle.lab.commands import call, call_json, check_system
from raddle.lab.rates import host_rates, parse_rate, parse_rates, rate_text


@pytest.mark.parametrize(
    ("text", "rate", "again"),
    [
        ("1gbit", 1_000_000_000, "1gbit"),
        ("1Gbit/s", 1_000_000_000, "1gbit"),
        ("2.5gbit", 2_500_000_000, "2.5gbit"),
        ("100 mbit", 100_000_000, "100mbit"),
        ("1500kbit", 1_500_000, "1.5mbit"),
        ("200000bit", 200_000, "200kbit"),
        ("200000", 200_000, "200kbit"),
    ],
)
def test_rates(text: str, rate: int, again: str) -> None:
    assert parse_rate(text) == rate
    assert rate_text(rate) == again


@pytest.mark.parametrize(
    "text", ["", "fast", "1furlong", "-1gbit", "0gbit", "nan", "1kbit", "1e9gbit"]
)
def test_what_is_no_rate(text: str) -> None:
    with pytest.raises(InputError, match="rate"):
        parse_rate(text)


def test_uneven_rates() -> None:
    assert parse_rates(["2=100mbit", "0=1mbit"]) == {2: "100mbit", 0: "1mbit"}
    assert host_rates(3, "1gbit", {1: "2mbit"}) == [10**9, 2 * 10**6, 10**9]


@pytest.mark.parametrize("texts", [["100mbit"], ["=1gbit"], ["-1=1gbit"], ["x=1gbit"], ["²=1gbit"]])
def test_what_is_no_rate_of_a_host(texts: list[str]) -> None:
    with pytest.raises(InputError, match="is not HOST=RATE: write 2=100mbit, say"):
        parse_rates(texts)


def test_a_host_has_one_rate_and_exists() -> None:
    with pytest.raises(InputError, match="host 2 is given two rates"):
        parse_rates(["2=1mbit", "2=2mbit"])
    with pytest.raises(InputError, match="for host 4, but the hosts are 0 to 3"):
        host_rates(4, "1gbit", {4: "1mbit"})


def test_names_of_labs_are_never_taken_for_each_other() -> None:
    for lab in ("lab", "a", "a-0", "a-net", "0"):
        for host in ("0", "12", names.NETWORK):
            assert names.parse_namespace(names.namespace(lab, host)) == (lab, host)
    for other in ("raddle-lab", "raddle-lab-01", "raddle--0", "lab-0", "raddle-lab-0x"):
        assert names.parse_namespace(other) is None


@pytest.mark.parametrize("name", ["", "A", "a_b", "-a", "a-", "a/b", "..", "a" * 33])
def test_a_name_that_no_namespace_can_have(name: str) -> None:
    with pytest.raises(InputError, match="cannot name a lab"):
        names.check_name(name)


def test_interfaces_fit_the_kernel_and_addresses_do_not_meet() -> None:
    assert len(names.bridge_port(63)) <= 15
    addresses = {
        names.address(subnet, host) for subnet in range(names.SUBNETS) for host in range(64)
    }
    marks = {names.bridge_address(subnet) for subnet in range(names.SUBNETS)}
    assert len(addresses) == 64 * names.SUBNETS
    assert not addresses & marks


@pytest.mark.parametrize("hosts", [-1, 0, 65])
def test_the_number_of_hosts(hosts: int) -> None:
    with pytest.raises(InputError, match=rf"a lab has 1 to 64 hosts, not {hosts}\."):
        Lab.up(hosts=hosts)


def test_systems_that_cannot_hold_a_lab(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "platform", "darwin")
        with pytest.raises(InputError, match="and this is darwin: use Linux"):
            check_system()
    monkeypatch.setattr(sys, "platform", "linux")
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "which", lambda tool, path: None if tool == "tc" else f"/sbin/{tool}")
        with pytest.raises(
            InputError, match="needs the command `tc`: install the package iproute2"
        ):
            check_system()
    monkeypatch.setattr(shutil, "which", lambda tool, path: f"/sbin/{tool}")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(InputError, match="run this with sudo"):
        check_system()


def test_a_command_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda tool, path: "/bin/sh")
    with pytest.raises(InputError, match=r"`ip -c echo no >&2; exit 3` failed \(no\)"):
        call("ip", "-c", "echo no >&2; exit 3")
    monkeypatch.setattr(subprocess, "run", _never_answers)
    with pytest.raises(InputError, match="`ip x` did not answer within 20 s"):
        call("ip", "x")


def test_json_that_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raddle.lab.commands.call", lambda *words: "\n")
    assert call_json("ip", "netns", "list") == []
    monkeypatch.setattr("raddle.lab.commands.call", lambda *words: '[{},{"name":"x"},{}]')
    assert call_json("ip", "netns", "list") == [{"name": "x"}]


def _never_answers(*args: object, **options: object) -> None:
    raise subprocess.TimeoutExpired("ip", 20)
