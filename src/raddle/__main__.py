"""`python -m raddle` is the command line."""

from raddle.cli.main import main

if __name__ == "__main__":
    main()
