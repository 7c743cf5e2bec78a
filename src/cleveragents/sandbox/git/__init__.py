"""Git repositories, with git run so that a hostile repository executes nothing."""
