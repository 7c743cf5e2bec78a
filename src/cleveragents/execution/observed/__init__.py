"""Plans whose steps somebody else performs: a coding agent, a framework, a program.

We are told before and after each. A group is made only where no call is open, because only there
does the conversation know the files as they are.
"""
