"""The executor's side of the conversation with an actor: proposals checked, messages made."""
