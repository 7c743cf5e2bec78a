"""Commands for whoever begins: files to start from, what is wrong with one, what each holds."""
