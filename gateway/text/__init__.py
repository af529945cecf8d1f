"""Text on one side, token ids on the other: tokenizers, chat templates, incremental detokenisation, stop strings.

Pure of gRPC and of the scheduler's link. The one process that it starts is the one in which templates run.
"""
