# SPDX-License-Identifier: Apache-2.0
"""The one error type of the project and the one table of exit codes (DESIGN section 4)."""

from enum import IntEnum


class Exit(IntEnum):
    """Exit codes of every command; the text is printed in each page."""

    OK = 0
    SLOW = 1
    USAGE = 2
    INPUT = 3
    MISSING = 4
    UNKNOWN = 5
    BUG = 70


EXIT_DOC: dict[Exit, str] = {
    Exit.OK: "done; nothing is slow",
    Exit.SLOW: "done, and something is slow (gh-alert) or bad (gh-doctor)",
    Exit.USAGE: "wrong usage",
    Exit.INPUT: "bad or cut input; what was sound before it was delivered",
    Exit.MISSING: "what the command needs is not here (no job, no ring, no rights)",
    Exit.UNKNOWN: "could not tell",
    Exit.BUG: "a bug in ghtools; the traceback is printed",
}


class GhError(Exception):
    """What went wrong, why, and what to try, as one line for a person.

    Core code raises it; one place (commands/_cli.py) prints it and exits with `code`.
    """

    def __init__(self, what: str, why: str = "", try_: str = "", code: Exit = Exit.USAGE) -> None:
        self.what, self.why, self.try_, self.code = what, why, try_, code
        super().__init__(what + (f": {why}" if why else "") + (f"; try {try_}" if try_ else ""))


class InputError(GhError):
    """Input that is malformed or was cut; exit 3."""

    def __init__(self, what: str, why: str = "", try_: str = "") -> None:
        super().__init__(what, why, try_, Exit.INPUT)


class MissingError(GhError):
    """Something the command needs is not on this machine; exit 4."""

    def __init__(self, what: str, why: str = "", try_: str = "") -> None:
        super().__init__(what, why, try_, Exit.MISSING)
