"""`python -m raddle` is the command line."""

from raddle.orphans import end_with_parent

if __name__ == "__main__":
    end_with_parent()  # where the page's server has started it

    from raddle.cli import main

    main()
