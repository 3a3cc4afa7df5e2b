"""The command ``kubectl-phones``, which kubectl runs for ``kubectl phones``."""

import argparse
import gc
import json
import os
import shutil
import signal
import sys
import traceback

from kubectl_phones import __version__, text
from kubectl_phones.fleet import fleet, has_problems
from kubectl_phones.gather import Selection, gather
from kubectl_phones.kubectl import Kubectl, KubectlError
from kubectl_phones.report import Fleet

PROBLEMS, FAILED = 1, 2
"""Exit codes; 0 is success."""

DESCRIPTION = """\
Show the phones of a cluster, and the nodes whose plugin is absent or not ready or whose phones are unhealthy. Problems
come first. Reads the API server only, by kubectl. What cannot be read, for example because a right is missing, is
reported on standard error, and the rest is shown.
"""
EPILOG = """\
Exit codes: 0 shown, and with --check all is well; 1 with --check: there are problems; 2 invalid usage, or the API
server cannot be read; with --check also if nodes or pods cannot be read.
"""


def main() -> int:
    """Run the command, and return its exit code. Invalid usage ends the process with 2."""
    options = _parser().parse_args()
    try:
        return _run(options)
    except KubectlError as error:
        print(f"kubectl-phones: {text.printable(str(error))}", file=sys.stderr)
        return FAILED
    except BrokenPipeError:  # the reader has ended; 1 would mean problems
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes it when it exits
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except Exception:  # noqa: BLE001 - a bug; exit code 1 would say that there are problems
        traceback.print_exc()
        return FAILED


def _run(options: argparse.Namespace) -> int:
    gc.disable()  # a hundred thousand objects are made, and the process ends soon
    kubeconfig = [f"--{name}={getattr(options, name)}" for name in ("context", "kubeconfig") if getattr(options, name)]
    selection = Selection(**{name: getattr(options, name) for name in Selection._fields})
    found = fleet(gather(Kubectl(kubeconfig), selection), selection)
    for line in found.missing:
        print(f"kubectl-phones: {text.printable(line)}", file=sys.stderr)
    _show(found, options.output)
    sys.stdout.flush()
    if not options.check:
        return 0
    return PROBLEMS if has_problems(found) else 0 if found.complete else FAILED


def _show(found: Fleet, output: str | None) -> None:
    """Print the document: as JSON, or as tables, which fit a terminal's width."""
    if output == "json":
        print(json.dumps(found, default=vars))
        return
    terminal, width = sys.stdout.isatty(), shutil.get_terminal_size().columns
    for line in text.lines(found):
        print(f"{line[: width - 1]}…" if terminal and len(line) > width else line)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("kubectl-phones", description=DESCRIPTION, epilog=EPILOG, allow_abbrev=False)
    add = parser.add_argument
    add("--unhealthy", action="store_true", help="show only nodes and phones with a problem")
    add("--node", dest="nodes", action="append", default=[], type=_name, help="show only this node; may be repeated")
    add("-n", "--namespace", metavar="NAME", default="", help="show only pods of this namespace")
    help_text = "show only this resource; may be repeated; default: all of aosp.io"
    add("--resource", dest="resources", metavar="NAME", action="append", default=[], type=_name, help=help_text)
    add("-o", "--output", choices=["json"], help="the document, see docs")
    add("--check", action="store_true", help="end with exit code 1 if there is a problem")
    add("--context", metavar="NAME", help="context of the kubeconfig")
    add("--kubeconfig", metavar="FILE", help="path of the kubeconfig")
    add("--version", action="version", version=f"%(prog)s {__version__}")
    return parser


def _name(text: str) -> str:
    """Return a name. An empty one, such as of an unset variable of a shell, would select nothing or everything."""
    if not text:
        raise argparse.ArgumentTypeError("a name is required")
    return text


if __name__ == "__main__":
    sys.exit(main())
