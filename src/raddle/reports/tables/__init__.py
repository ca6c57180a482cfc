"""Tables of verbs, from the data that `--json` prints."""
