"""Results of experiments (`raddle reproduce`), and their forms: terminal tables, Markdown for READMEs."""
