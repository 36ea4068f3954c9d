# SPDX-License-Identifier: Apache-2.0
"""Several "hosts" on one machine: network namespaces on a bridge, each with a host name and an address of its own.

Only the network and the host name are a host's own; files, processes and /dev/shm are shared. A slow link is a token
bucket on both directions of a host's cable. Names carry the pid of the maker, so that what a crashed run left behind
is known and removed by the next.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

MARK = "ght"  # names: ghtPID (bridge), ghtPID-N (namespace), ghtPIDvN and ghtPIDhN (ends of a cable)


def unable() -> str:
    """Why this machine allows no hosts of this kind; empty if it does."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    probe = f"{MARK}{os.getpid()}-probe"
    try:
        made = _ip("netns", "add", probe, check=False)
    except OSError:
        return "there is no command ip (apt-get install iproute2)"
    if made.returncode:
        return f"ip netns add: {made.stderr.strip()}"
    link = f"{MARK}{os.getpid()}p"
    tried = _ip("link", "add", link, "type", "veth", "peer", "name", f"{link}q", check=False)
    shaped = _tc("qdisc", "add", "dev", link, *_bucket("100mbit"), check=False)
    _ip("link", "del", link, check=False)
    _ip("netns", "del", probe, check=False)
    failed = next((done for done in (tried, shaped) if done.returncode), None)
    return f"{' '.join(failed.args[:3])}: {failed.stderr.strip()}" if failed else ""


class Hosts:
    """`count` hosts, made on entry and gone on exit; `names` are their host names.

    Raises OSError where they cannot be made; ask unable() first.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.bridge = f"{MARK}{os.getpid()}"
        self.names = [f"node{number}" for number in range(count)]
        self.net = f"10.{64 + os.getpid() % 128}.{os.getpid() // 128 % 256}"

    def address(self, host: int) -> str:
        """IPv4 address of a host."""
        return f"{self.net}.{host + 1}"

    def interface(self, host: int) -> str:
        """Its network interface, as seen inside: what GLOO_SOCKET_IFNAME must be."""
        return f"{self.bridge}v{host}"

    def command(self, host: int, words: list[str]) -> list[str]:
        """The words that run a command on a host."""
        named = 'hostname "$0" && exec "$@"'
        return [
            "ip", "netns", "exec", self._space(host), "unshare", "--uts", "sh", "-c", named, self.names[host], *words,
        ]  # fmt: skip

    def slow_link(self, host: int, rate: str) -> None:
        """Let what a host sends and receives through at `rate` (tc's notation: 200mbit)."""
        self.heal_link(host)
        _tc("qdisc", "add", "dev", self.interface(host), *_bucket(rate), space=self._space(host))
        _tc("qdisc", "add", "dev", f"{self.bridge}h{host}", *_bucket(rate))

    def heal_link(self, host: int) -> None:
        """Undo slow_link; nothing if there was none."""
        _tc("qdisc", "del", "dev", self.interface(host), "root", check=False, space=self._space(host))
        _tc("qdisc", "del", "dev", f"{self.bridge}h{host}", "root", check=False)

    def __enter__(self) -> Hosts:
        remove_leftovers()
        try:
            _ip("link", "add", self.bridge, "type", "bridge")
            _ip("link", "set", self.bridge, "up")
            for host in range(self.count):
                space, inside, outside = self._space(host), self.interface(host), f"{self.bridge}h{host}"
                _ip("netns", "add", space)
                _ip("link", "add", outside, "type", "veth", "peer", "name", inside, "netns", space)
                _ip("link", "set", outside, "master", self.bridge, "up")
                _ip("-n", space, "addr", "add", f"{self.address(host)}/24", "dev", inside)
                _ip("-n", space, "link", "set", inside, "up")
                _ip("-n", space, "link", "set", "lo", "up")
        except BaseException:
            self.remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def remove(self) -> None:
        """Take everything down; what is not there is no fault."""
        for host in range(self.count):
            _ip("netns", "del", self._space(host), check=False)
            _ip("link", "del", f"{self.bridge}h{host}", check=False)
        _ip("link", "del", self.bridge, check=False)

    def _space(self, host: int) -> str:
        return f"{self.bridge}-{host}"


def remove_leftovers() -> None:
    """Remove the hosts of runs whose process is no more."""
    spaces = [line.split()[0] for line in _ip("netns", "list", check=False).stdout.splitlines() if line]
    links = [path.name for path in Path("/sys/class/net").glob(f"{MARK}[0-9]*")]
    for name in spaces:
        if _is_dead(name):
            _ip("netns", "del", name, check=False)
    for name in links:
        if _is_dead(name):
            _ip("link", "del", name, check=False)


def _is_dead(name: str) -> bool:
    digits = ""
    for letter in name.removeprefix(MARK) if name.startswith(MARK) else "":
        if not letter.isdigit():
            break
        digits += letter
    return bool(digits) and not Path(f"/proc/{digits}").exists()


def _bucket(rate: str) -> list[str]:
    return ["root", "tbf", "rate", rate, "burst", "64kb", "latency", "200ms"]


def _ip(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return _run(["ip", *words], check)


def _tc(*words: str, check: bool = True, space: str = "") -> subprocess.CompletedProcess[str]:
    return _run(["tc", *(["-n", space] if space else []), *words], check)


def _run(words: list[str], check: bool) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(words, capture_output=True, text=True, timeout=30)
    if check and done.returncode:
        raise OSError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done
