"""The command line: a file a verb, what verbs share (options, output, compiling, waiting), and main."""
