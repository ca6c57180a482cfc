"""Terminal tables of the verbs (sub-commands of raddle), from the data that `--json` prints."""
