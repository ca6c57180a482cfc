"""Runs the command line: `python -m raddle`."""

from raddle.cli.main import main

if __name__ == "__main__":
    main()
