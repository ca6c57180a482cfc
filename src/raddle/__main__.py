"""`python -m raddle` is the command line."""

from raddle.run.orphans import end_with_parent

if __name__ == "__main__":
    end_with_parent()  # where the page's server has started it

    from raddle.cli import main

    main()
