"""Plans whose steps are performed elsewhere: by a coding agent, a framework, a program.

We are notified before and after each. A group is made only while no call is open, because only then
conversation and files match.
"""
