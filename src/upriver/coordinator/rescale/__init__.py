"""The coordinator's rescales.

``plan`` says what moves, ``stages`` how far a rescale is, and ``machine`` goes from stage to stage.
"""
