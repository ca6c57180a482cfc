"""The experiments of the papers that raddle stands on, done again: `raddle reproduce NAME`."""
