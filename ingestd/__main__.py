"""The entry point of `python -m ingestd` and of the console script `ingestd`.

Invariant: without the extra `daemon` the command fails with a message that says what to install.
"""

from __future__ import annotations

import sys

from ingestd.errors import ConfigError


def main() -> None:
    """Run the command-line interface, or exit with a message if its packages are not installed."""
    try:
        from ingestd.cli.main import main as command  # noqa: PLC0415  # requires the extra `daemon`

        command()  # imports the module of each command when it is used
    except KeyboardInterrupt:  # Ctrl-C during the imports, which take seconds
        sys.exit(1)
    except ModuleNotFoundError as error:
        if str(error.name).startswith("ingestd"):
            raise
        what = f"the packages of the daemon are not installed ({error.name} is missing)"
        fault = ConfigError(what, hint="run: pip install 'ingestd[daemon]'")
        sys.stderr.write(f"ingestd: {fault}\n")
        sys.exit(ConfigError.exit_code)


if __name__ == "__main__":
    main()
