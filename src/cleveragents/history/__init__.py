"""What a person does with the past of a plan: roll back, undo, correct, compare, export.

Never touches the user's own resources.
"""
