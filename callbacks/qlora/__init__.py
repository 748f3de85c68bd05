"""The QLoRA trainer, a stage a file: data, lengths, memory plan, and the training itself.

Nothing is imported here: the plan answers where torch is not installed, and the data needs no model.
"""
