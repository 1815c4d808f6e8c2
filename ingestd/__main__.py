"""`python -m ingestd` is the console script `ingestd`."""

from ingestd.cli.main import main

if __name__ == "__main__":
    main()
